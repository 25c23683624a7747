"""Several launches at once on a real H200: what the grid id tells, and the order of atomics not."""

from pathlib import Path

import pytest

from kvtrace_cli.analysis.reconcile import reconcile
from kvtrace_cli.dumps.recording import read_recording
from kvtrace_cli.dumps.run_dir import open_run_dir

CASES = Path(__file__).parents[1] / "data" / "h200-graph-cases"


@pytest.mark.parametrize(
    ("case", "blocks", "same_by_order"),
    [
        ("streams_2", 525, 81),
        ("streams_4", 1050, 164),
        ("streams_16", 4200, 688),
        # Two execs of one graph, each on a stream of its own.
        ("two_execs", 560, 105),
        # Embedded twice in one graph, and on one stream: nothing overtakes.
        ("child_graphs", 70, 70),
    ],
)
def test_every_block_is_found_by_grid_id_and_stamp(case, blocks, same_by_order):
    found = reconcile(read_recording(open_run_dir(CASES / case, allow_incomplete=False)))
    nodes = found.whole_life.graph_nodes
    assert (nodes.expected_blocks, nodes.matched_blocks, nodes.unexpected_blocks) == (
        *(blocks, blocks, 0),
    )
    assert (found.order_join.matches, found.order_join.total) == (same_by_order, blocks)
