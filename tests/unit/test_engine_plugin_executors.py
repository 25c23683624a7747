"""Ray kills its actors: their recordings are ended before."""

from types import SimpleNamespace

import pytest

from kvtrace_cli.engine_site.kvtrace_engine_plugin import executor_hooks


class Executor:
    """As vLLM's: calls that all workers run, and an end that kills them."""

    def __init__(self, fails=False):
        self.did = []
        self.shutting_down = False
        self._fails = fails

    def collective_rpc(self, method, timeout=None):
        assert timeout > 0
        self.did.append(method)
        if self._fails:
            raise TimeoutError("nobody answers")

    def shutdown(self):
        if not self.shutting_down:
            self.shutting_down = True
            self.did.append("kill")


@pytest.fixture(params=sorted(executor_hooks.EXECUTORS))
def executor_class(request):
    """The class of one module, hooked twice as if two modules had it."""
    hooked = type("Hooked", (Executor,), {"shutdown": Executor.shutdown})
    name = executor_hooks.EXECUTORS[request.param]
    module = SimpleNamespace(**{name: hooked})
    act = executor_hooks.actions()[request.param]
    act(module)
    act(module)
    return hooked


def test_workers_end_their_recordings_once_and_before_they_are_killed(executor_class):
    executor = executor_class()
    executor.shutdown()
    executor.shutdown()
    assert executor.did == [executor_hooks.end_recording_of, "kill"]


def test_workers_that_do_not_answer_are_killed_all_the_same(executor_class, capsys):
    executor = executor_class(fails=True)
    executor.shutdown()
    assert executor.did[-1] == "kill"
    assert "recordings of Ray workers may lack their end" in capsys.readouterr().err


def test_after_a_worker_has_died_nobody_is_asked(executor_class):
    executor = executor_class()
    executor.is_failed = True
    executor.shutdown()
    assert executor.did == ["kill"]


def test_a_module_without_the_class_is_left_alone():
    for act in executor_hooks.actions().values():
        act(SimpleNamespace())


def test_a_worker_without_an_injector_has_nothing_to_end(monkeypatch):
    monkeypatch.delenv("KVTRACE_INJECTOR", raising=False)
    monkeypatch.delenv("CUDA_INJECTION64_PATH", raising=False)
    executor_hooks.end_recording_of(None)
    monkeypatch.setenv("KVTRACE_INJECTOR", "/not/loaded.so")
    executor_hooks.end_recording_of(None)
