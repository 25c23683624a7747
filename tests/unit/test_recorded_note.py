"""What is said on stderr of a run that ended in order, and what to do next."""

from contextlib import closing
from types import SimpleNamespace

import gap_scenes as scenes
import pytest

from kvtrace_cli.capture.live import LiveCounters, read_counters
from kvtrace_cli.capture.parallel import ParallelSizes
from kvtrace_cli.capture.progress import Progress
from kvtrace_cli.capture.ranks import look_at_ranks
from kvtrace_cli.commands.recorded import tell_recorded
from kvtrace_cli.config import Observer, RecordingConfig, RunConfig
from kvtrace_cli.dumps.run_dir import RunDir


def told(capsys, run_dir, recording, counters, **ranks):
    recorded = SimpleNamespace(
        run_dir=run_dir,
        manifest=SimpleNamespace(config=RunConfig("q", recording=recording)),
        counters=counters,
        ranks=look_at_ranks(run_dir, ranks.pop("sizes", ParallelSizes()), host_clock="", **ranks),
    )
    with closing(Progress()) as progress:
        tell_recorded(recorded, progress)
    return capsys.readouterr().err


@pytest.mark.parametrize("is_partial", [True, False])
def test_a_directory_without_ranks_is_a_fault_unless_they_are_elsewhere(
    tmp_path, capsys, is_partial
):
    (tmp_path / "raw").mkdir()
    run_dir = RunDir(tmp_path)
    ranks = {"sizes": ParallelSizes(tensor=2), "is_partial": is_partial}
    said = told(capsys, run_dir, RecordingConfig(), LiveCounters(), **ranks)
    assert "ranks 0/2 recorded 0 block events" in said
    assert ("kvtrace collect" in said) is is_partial
    assert ("the injector never attached" in said) is not is_partial


@pytest.mark.parametrize("observer", Observer)
def test_only_a_run_that_cupti_observed_is_to_be_paired(tmp_path, capsys, observer):
    run_dir = RunDir(tmp_path / "my run")
    by_cupti = observer is Observer.CUPTI
    if by_cupti:
        scenes.write_seen(run_dir.path, scenes.seen())
    else:
        scenes.write_blocks(run_dir.path, scenes.launched())
    said = told(capsys, run_dir, RecordingConfig(observer=observer), read_counters(run_dir.raw))
    assert ("activity records, 0 dropped" in said) is by_cupti
    assert (f"`kvtrace gap DIR_SANITIZER '{run_dir.path}'`" in said) is by_cupti
    assert ("exit code 4, is no fault" in said) is by_cupti


def test_a_run_in_which_cupti_saw_nothing_is_not_to_be_paired(tmp_path, capsys):
    (tmp_path / "raw").mkdir()
    recording = RecordingConfig(observer=Observer.CUPTI)
    said = told(capsys, RunDir(tmp_path), recording, LiveCounters())
    assert "CUPTI saw nothing run" in said
    assert "kvtrace gap" not in said
