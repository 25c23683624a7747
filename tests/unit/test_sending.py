"""How requests overlap, with an engine whose answers end when a test says so."""

import threading
import time

import pytest

from kvtrace_cli.capture.client import RequestRecord
from kvtrace_cli.capture.sending import Sending
from kvtrace_cli.config import RequestSpec, Role


def spec(**changes):
    return RequestSpec(Role.MEASURED, (10, 11), 3, **changes)


class Engine:
    """Answers a request when its gate opens; counts how many it has at once."""

    def __init__(self, count, *, failing=(), open_gates=True):
        self.gates = [threading.Event() for _ in range(count)]
        self.sent = []
        self.most = 0
        self._failing = failing
        self._now = 0
        self._lock = threading.Lock()
        if open_gates:
            for gate in self.gates:
                gate.set()

    def send(self, index, asked):
        with self._lock:
            self.sent.append(index)
            self._now += 1
            self.most = max(self.most, self._now)
        assert self.gates[index].wait(10)
        with self._lock:
            self._now -= 1
        error = "HTTP 500" if index in self._failing else None
        return RequestRecord(
            *(index, "measured", f"kvtrace-{index}", asked.prompt_token_ids, asked.max_tokens),
            *(200, (1, 2, 3), 1, 2, None, error),
        )


def sending(engine, concurrency, *specs):
    count = len(engine.gates)
    return Sending(engine, list(enumerate(specs or [spec()] * count)), concurrency, poll_s=0.01)


def nothing(*_arguments):
    pass


def test_one_at_a_time_is_in_order():
    engine = Engine(4)
    answers = list(sending(engine, 1).answers(nothing, nothing))
    assert [answer.request_index for answer in answers] == [0, 1, 2, 3]
    assert engine.most == 1


def test_answers_come_as_they_end_and_never_more_run_than_asked():
    engine = Engine(5, open_gates=False)
    answers = sending(engine, 2).answers(nothing, nothing)
    engine.gates[1].set()
    assert next(answers).request_index == 1
    engine.gates[2].set()
    assert next(answers).request_index == 2
    assert set(engine.sent) <= {0, 1, 2, 3}
    for gate in engine.gates:
        gate.set()
    assert {answer.request_index for answer in answers} == {0, 3, 4}
    assert engine.most == 2


def test_after_a_failure_nothing_is_sent_and_what_flies_is_awaited():
    engine = Engine(6, failing={1}, open_gates=False)
    all_of_it = sending(engine, 3)
    answers = all_of_it.answers(nothing, nothing)
    engine.gates[1].set()
    assert next(answers).error == "HTTP 500"
    engine.gates[0].set()
    engine.gates[2].set()
    assert {answer.request_index for answer in answers} == {0, 2}
    assert (all_of_it.unsent, len(engine.sent)) == (3, 3)


def test_a_request_waits_for_its_time_and_those_behind_it_wait_too():
    engine = Engine(3)
    begin = time.monotonic()
    sent = []
    all_of_it = sending(engine, 3, spec(), spec(start_after_s=0.3), spec())
    answers = all_of_it.answers(
        lambda index, _spec: sent.append((index, time.monotonic() - begin)), nothing
    )
    assert len(list(answers)) == 3
    assert [index for index, _ in sent] == [0, 1, 2]
    assert sent[0][1] < 0.3 <= sent[1][1]


def test_the_caller_looks_around_while_it_waits():
    engine = Engine(1, open_gates=False)
    looks = []

    def look():
        looks.append(1)
        if len(looks) == 3:
            engine.gates[0].set()

    assert len(list(sending(engine, 1).answers(nothing, look))) == 1
    assert len(looks) >= 3


def test_a_bug_in_a_thread_is_not_lost():
    class Broken:
        def send(self, _index, _spec):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        list(Sending(Broken(), [(0, spec())], 1, poll_s=0.01).answers(nothing, nothing))
