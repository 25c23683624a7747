"""Timelines of graphs on several streams, contexts and threads, run by the emulated driver."""

import pytest
from decoded_trace import assert_true_to, export_source, read_trace
from emulated import build, run_case

from kvtrace_cli.app import main


@pytest.mark.parametrize(
    "case", ["streams_4", "two_execs", "two_contexts", "two_threads", "recreated", "child_graphs"]
)
def test_a_timeline_nests_never_overlaps_and_has_the_recordings_times(case, tmp_path):
    done = run_case(build("plain"), tmp_path / "run", case)
    assert done.status == 0, done.errors
    out = tmp_path / "out.pftrace"
    assert main(["export", str(done.run_dir.path), "--perfetto", "-o", str(out)]) == 0
    tracks = read_trace(out)
    source = export_source(done.run_dir.path)
    assert_true_to(source, tracks)
    launches = source.result.launches
    execs = launches.select("context_index", "graph_exec", "exec_generation", "stream").n_unique()
    assert len({track.name for track in tracks}) == execs
