"""Whether pipeline ranks hold disjoint layers that together are all, and tensor ranks the same."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from kvtrace_cli.analysis.rank_model import Rank, RankDifference, RankRule
from kvtrace_cli.dumps.schema import Layout

_LISTED: Final = 8


def layer_differences(
    stages: Sequence[Sequence[Rank]], layouts: Mapping[int, Layout]
) -> Iterator[RankDifference]:
    """Yield where the layers of one engine's ranks are not shared out as they should be.

    Args:
        stages: of each pipeline rank of one engine its tensor ranks; all of them are there.
        layouts: of each process its KV tensors; all are known.

    Gaps are looked for only where each rank's own layers follow each other: an engine whose
    attention layers are not all of its layers has gaps by nature.
    """
    held = {rank.name: _layers(layouts[rank.process_id or 0]) for stage in stages for rank in stage}
    for first, *others in stages:
        for rank in others:
            if held[rank.name] != held[first.name]:
                yield _difference(
                    (rank, first),
                    min(held[rank.name] ^ held[first.name]),
                    f"{rank.name} holds KV tensors of layers {_listed(held[rank.name])}, "
                    f"{first.name} of layers {_listed(held[first.name])}.",
                )
    heads = [stage[0] for stage in stages]
    yield from _overlaps(heads, held)
    if len(heads) > 1 and all(_is_dense(held[rank.name]) for rank in heads):
        yield from _gaps(heads, held)


def _layers(layout: Layout) -> frozenset[int]:
    return frozenset(tensor.layer_index for tensor in layout.tensors)


def _overlaps(
    heads: Sequence[Rank], held: Mapping[str, frozenset[int]]
) -> Iterator[RankDifference]:
    owners: dict[int, Rank] = {}
    for rank in heads:
        shared = sorted(held[rank.name] & owners.keys())
        if shared:
            other = owners[shared[0]]
            text = f"{rank.name} and {other.name} both hold layers {_listed(shared)}."
            yield _difference((rank, other), shared[0], text)
        owners |= dict.fromkeys(held[rank.name] - owners.keys(), rank)


def _gaps(heads: Sequence[Rank], held: Mapping[str, frozenset[int]]) -> Iterator[RankDifference]:
    everything = frozenset().union(*(held[rank.name] for rank in heads))
    lost = sorted(set(range(max(everything, default=-1) + 1)) - everything)
    if lost:
        # Layers go up with pipeline ranks, so the rank before the gap, or else the first one.
        before = [rank for rank in heads if min(held[rank.name], default=0) < lost[0]]
        rank = before[-1] if before else heads[0]
        yield _difference((rank, rank), lost[0], f"No pipeline rank holds layers {_listed(lost)}.")


def _is_dense(layers: frozenset[int]) -> bool:
    """Say whether a rank's layers follow each other; of one alone nobody knows."""
    return len(layers) > 1 and max(layers) - min(layers) + 1 == len(layers)


def _difference(pair: tuple[Rank, Rank], layer_index: int, text: str) -> RankDifference:
    rank, other = pair
    return RankDifference(RankRule.LAYERS, rank.name, other.name, text, layer_index=layer_index)


def _listed(layers: Sequence[int] | frozenset[int]) -> str:
    """Write runs of layers short: `0..19, 40`."""
    runs: list[tuple[int, int]] = []
    for index in sorted(layers):
        if runs and index == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], index)
        else:
            runs.append((index, index))
    texts = [str(low) if low == high else f"{low}..{high}" for low, high in runs[:_LISTED]]
    return ", ".join(texts + (["..."] if len(runs) > _LISTED else [])) or "none"
