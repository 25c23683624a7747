"""What is said on stderr of a run whose ranks are recorded elsewhere."""

from contextlib import closing
from types import SimpleNamespace

import pytest

from kvtrace_cli.capture.live import LiveCounters
from kvtrace_cli.capture.parallel import ParallelSizes
from kvtrace_cli.capture.progress import Progress
from kvtrace_cli.capture.ranks import look_at_ranks
from kvtrace_cli.commands.recorded import tell_recorded
from kvtrace_cli.config import RecordingConfig, RunConfig
from kvtrace_cli.dumps.run_dir import RunDir


@pytest.mark.parametrize("is_partial", [True, False])
def test_a_directory_without_ranks_is_a_fault_unless_they_are_elsewhere(
    tmp_path, capsys, is_partial
):
    (tmp_path / "raw").mkdir()
    run_dir = RunDir(tmp_path)
    sizes = ParallelSizes(tensor=2)
    recorded = SimpleNamespace(
        run_dir=run_dir,
        manifest=SimpleNamespace(config=RunConfig("q", recording=RecordingConfig())),
        counters=LiveCounters(),
        ranks=look_at_ranks(run_dir, sizes, host_clock="", is_partial=is_partial),
    )
    with closing(Progress()) as progress:
        tell_recorded(recorded, progress)
    told = capsys.readouterr().err
    assert "ranks 0/2 recorded 0 block events" in told
    assert ("kvtrace collect" in told) is is_partial
    assert ("the injector never attached" in told) is not is_partial
