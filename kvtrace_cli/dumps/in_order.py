"""Work on the parts of something large: several at once, the results in order."""

import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Final, TypeVar

_MOST_THREADS: Final = 4
# Results that wait for their turn, for each thread.
_AHEAD: Final = 2

_T = TypeVar("_T")


def in_order(work: Callable[[int], _T], count: int) -> Iterator[_T]:
    """Yield `work(0)`, `work(1)`, ..., done by threads; few results are held at a time.

    Args:
        work: must be of the kind that numpy does without holding Python's lock, to be of use.
        count: how many parts there are.
    """
    if count <= 1:
        yield from map(work, range(count))
        return
    threads = min(len(os.sched_getaffinity(0)), _MOST_THREADS)
    with ThreadPoolExecutor(threads) as pool:
        numbers = iter(range(count))
        pending = deque(pool.submit(work, number) for number in islice(numbers, threads * _AHEAD))
        try:
            while pending:
                yield pending.popleft().result()
                pending.extend(pool.submit(work, number) for number in islice(numbers, 1))
        finally:
            for waiting in pending:
                waiting.cancel()
