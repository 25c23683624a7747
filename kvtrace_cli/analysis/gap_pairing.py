"""Which replays of two runs belong together: by the order of what ran, never by time."""

from collections.abc import Iterator

from kvtrace_cli.analysis.gap_courses import Item

# Places of the same item in the first and in the second run.
Pair = tuple[int, int]


def unlike_processes(launched: int, seen: int) -> Iterator[str]:
    """Say if target kernels ran in another number of processes, or in none."""
    if launched != seen or not launched:
        yield (
            f"Target kernels were launched in {launched} processes of the first run and ran in "
            f"{seen} of the second."
        )


def first_difference(first: list[Item], second: list[Item]) -> str | None:
    """Say where two courses part; None if they are alike to their ends."""
    for index, (one, other) in enumerate(zip(first, second, strict=False)):
        if (one.is_replay, one.shape) != (other.is_replay, other.shape):
            return (
                f"item {index} of its life is {one.text} in the first run, {other.text} in the "
                "second."
            )
    if len(first) == len(second):
        return None
    longer, more = ("first", first) if len(first) > len(second) else ("second", second)
    index = min(len(first), len(second))
    return f"item {index} of its life is {more[index].text} in the {longer} run only."


def paired_replays(first: list[Item], second: list[Item], *, alike: bool) -> list[Pair]:
    """Return the measured replays of the first run, each with its own in the second.

    Args:
        first: the course that knows what is measured; if nothing is, all replays are taken.
        second: the other course.
        alike: the courses do not differ. If they do, the k-th measured replay of each shape is
            paired with the k-th: as many replays of a shape come before the measured ones in both,
            those of start-up and warm-up, which are the same for the same settings.
    """
    measured = _measured(first)
    if alike:
        return [(index, index) for index in measured]
    pairs: list[Pair] = []
    for shape in dict.fromkeys(first[index].shape for index in measured):
        places, others = (
            [index for index, item in enumerate(run) if is_replay_of(item, shape)]
            for run in (first, second)
        )
        wanted = [index for index in measured if first[index].shape == shape]
        pairs += zip(wanted, others[places.index(wanted[0]) :], strict=False)
    return sorted(pairs)


def is_replay_of(item: Item, shape: tuple[str, ...]) -> bool:
    """Say whether an item is a replay of a graph of this shape."""
    return item.is_replay and item.shape == shape


def _measured(items: list[Item]) -> list[int]:
    any_measured = any(item.stretch is not None for item in items)
    return [
        index
        for index, item in enumerate(items)
        if item.is_replay and (item.stretch is not None or not any_measured)
    ]
