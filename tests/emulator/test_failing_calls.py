"""A Sanitizer call that fails never changes what the engine does, and is never hidden."""

import pytest
from emulated import build, run_case, run_untraced

from kvtrace_cli.analysis.model import Verdict
from kvtrace_cli.config import Record

# Each function the injector calls, and how often it does so in the case.
CALLS = {
    "sanitizerSubscribe": 1,
    "sanitizerEnableCallback": 10,
    "sanitizerAlloc": 1,
    "sanitizerAllocHost": 1,
    "sanitizerGetStreamHandle": 1,
    "sanitizerMemset": 1,
    "sanitizerMemcpyHostToDeviceAsync": 1,
    "sanitizerStreamSynchronize": 1,
    "sanitizerAddPatches": 1,
    "sanitizerPatchInstructions": 1,
    "sanitizerPatchModule": 1,
    "sanitizerSetCallbackData": 3,
    "sanitizerSetLaunchCallbackData": 5,
    "sanitizerGetFunctionPcAndSize": 2,
    "cuFuncGetName": 3,
}
# A failure in these comes before any file; it is said on stderr.
BEFORE_FILES = {"sanitizerSubscribe", "sanitizerEnableCallback"}
CASE = "plain_and_graph"
# Where stores are recorded, a second kind of instruction is patched.
STORE_CALLS = CALLS | {"sanitizerPatchInstructions": 2}
EACH = [
    *((Record.BLOCKS, CASE, call, times) for call, times in CALLS.items()),
    *((Record.WRITES, "stores", call, times) for call, times in STORE_CALLS.items()),
]


@pytest.mark.parametrize(("record", "case", "call", "times"), EACH)
def test_a_call_that_fails_once(record, case, call, times, tmp_path):
    built = build("plain")
    status, output = run_untraced(built, case)
    for number in range(1, times + 1):
        fail = {"KVTRACE_EMULATOR_FAIL": f"{call}:{number}:1"}
        done = run_case(built, tmp_path / str(number), case, environment=fail, record=record)
        assert (done.status, done.output) == (status, output), (number, done.errors)
        if call in BEFORE_FILES:
            assert "the Sanitizer refused" in done.errors
            assert done.files() == ["kvtrace.config"]
            continue
        assert any(line["event"] == "failure" for line in done.journal()), number
        assert done.reconciled().verdict is not Verdict.AGREES, number


@pytest.mark.parametrize(("record", "case", "call"), [each[:3] for each in EACH])
def test_a_call_that_always_fails(record, case, call, tmp_path):
    built = build("plain")
    status, output = run_untraced(built, case)
    fail = {"KVTRACE_EMULATOR_FAIL": f"{call}:0:1"}
    done = run_case(built, tmp_path / "run", case, environment=fail, record=record)
    assert (done.status, done.output) == (status, output), done.errors
    if call not in BEFORE_FILES:
        assert done.reconciled().verdict is not Verdict.AGREES


def test_a_disk_that_is_not_there_is_no_harm(tmp_path):
    built = build("plain")
    status, output = run_untraced(built, CASE)
    done = run_case(
        built,
        tmp_path / "run",
        CASE,
        environment={"KVTRACE_CONFIG": str(tmp_path / "no such file")},
    )
    assert (done.status, done.output) == (status, output)
    assert "not recording" in done.errors
