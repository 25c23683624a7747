"""Parts are worked on by threads, and come in order."""

import threading

import pytest

from kvtrace_cli.dumps.in_order import in_order


@pytest.mark.parametrize("count", [0, 1, 2, 3, 50])
def test_results_come_in_order(count):
    assert list(in_order(lambda number: number * number, count)) == [n * n for n in range(count)]


def test_an_error_comes_at_its_place():
    def work(number):
        if number >= 3:
            raise ValueError(number)
        return number

    found = in_order(work, 100)
    assert [next(found) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ValueError, match=r"^3$"):
        next(found)


def test_few_results_are_held_that_nobody_asked_for():
    begun = []
    found = in_order(begun.append, 1000)
    next(found)
    found.close()
    assert 0 < len(begun) < 50


def test_one_part_needs_no_thread():
    assert list(in_order(lambda _: threading.current_thread(), 1)) == [threading.main_thread()]
