"""How the emulated engine lays ranks out, and how its replicas agree on passes."""

import pytest

from kvtrace_cli.emulator.lockstep import LockstepHost
from kvtrace_cli.emulator.parallel import Parallel, Rank
from kvtrace_cli.emulator.scheduler import PassShape


def test_world_ranks_count_tensor_ranks_first():
    parallel = Parallel(tensor=2, pipeline=2, data=3)
    assert parallel.devices == 12
    assert parallel.ranks(1) == [
        Rank(tensor=0, pipeline=0, data=1, world=0),
        Rank(tensor=1, pipeline=0, data=1, world=1),
        Rank(tensor=0, pipeline=1, data=1, world=2),
        Rank(tensor=1, pipeline=1, data=1, world=3),
    ]
    assert [parallel.device(rank) for rank in parallel.ranks(1)] == [4, 5, 6, 7]
    assert parallel.name(parallel.ranks(1)[3]) == "_DP1_PP1_TP1"


@pytest.mark.parametrize(
    ("layers", "stages", "counts"),
    [(4, 2, [2, 2]), (40, 3, [13, 14, 13]), (3, 2, [2, 1]), (7, 4, [2, 2, 2, 1]), (5, 1, [5])],
)
def test_stages_share_the_layers_out_without_a_gap(layers, stages, counts):
    parallel = Parallel(pipeline=stages)
    parts = [parallel.layers_of(Rank(pipeline=stage), layers) for stage in range(stages)]
    assert [len(part) for part in parts] == counts
    assert [layer for part in parts for layer in part] == list(range(layers))


class Link:
    """Keeps what is sent to a replica."""

    def __init__(self):
        self.sent = []

    def send(self, *message):
        self.sent.append(message)


def test_the_first_shape_of_a_pass_calls_the_others_and_the_last_one_settles_it():
    links = [Link(), Link()]
    host = LockstepHost(links)
    host.take(1, PassShape(3, is_decode=True))
    assert links[0].sent == [("join", 0)]
    host.take(0, PassShape(0, is_decode=True))
    assert links[0].sent[1:] == links[1].sent == [("agreed", PassShape(3, is_decode=True))]
    host.take(0, PassShape(2, is_decode=True))
    host.take(1, PassShape(7, is_decode=False))
    assert links[1].sent[1:] == [("join", 1), ("agreed", PassShape(7, is_decode=False))]


def test_a_replica_without_rows_has_no_say_in_how_a_pass_is_launched():
    shapes = [PassShape(0, is_decode=False), PassShape(2, is_decode=True)]
    assert PassShape.largest(shapes) == PassShape(2, is_decode=True)
