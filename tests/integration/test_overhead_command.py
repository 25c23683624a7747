"""`kvtrace overhead` as a program: on the emulator, and with a stand-in for vLLM that fails."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from emulated_runs import needs_libraries
from machine import make_machine, wait_until

REPOSITORY = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "kvtrace_cli", "overhead"]
SMALL = ["--model", "Qwen3-14B", "--batch", "1,2", "--tokens", "6", "--prefill", "40"]
USED_MIB = 1000
# What `nvidia-smi` says of a machine on which only the stand-ins of the test run.
NVIDIA_SMI = f"""#!/bin/sh
case "$1" in
--query-compute-apps*) while read -r pid; do echo "$pid, {USED_MIB}"; done <"$KVTRACE_TEST_PIDS" ;;
*) echo 'NVIDIA H200, 580.159.04, 143771, 143000, 9.0' ;;
esac
"""
COMPUTE_SANITIZER = '#!/bin/sh\necho "memcheck begins"\nshift 4\nexec "$@"\n'


@pytest.fixture
def here(tmp_path):
    machine, environment = make_machine(tmp_path)
    for name, text in (("nvidia-smi", NVIDIA_SMI), ("compute-sanitizer", COMPUTE_SANITIZER)):
        tool = tmp_path / "bin" / name
        tool.write_text(text)
        tool.chmod(0o755)
    ours = {name: text for name, text in os.environ.items() if name != "CUDA_INJECTION64_PATH"}
    return machine, ours | environment | {"PYTHONPATH": str(REPOSITORY), "COLUMNS": "80"}


def on_stand_in(machine, *options):
    return [
        *(*COMMAND, *SMALL, "--out", str(machine.out), "--python", str(machine.python)),
        *("--injector", str(machine.injector)),
        *("--sanitizer-library", str(machine.sanitizer_library), *options),
    ]


def run(command, environment, **more):
    return subprocess.run(
        command,
        env=environment | more,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def kept(machine):
    return json.loads((machine.out / "overhead.json").read_text())


@needs_libraries
def test_all_arms_on_the_emulator_and_the_tables_again(tmp_path):
    out = tmp_path / "cost"
    options = ["--engine", "emulator", "--starts", "2", "--rounds", "2", "--out", str(out)]
    options += ["--arms", "clean,callbacks,no-op,blocks,switched,steps,writes"]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY), "COLUMNS": "80"}
    done = run([*COMMAND, *SMALL, *options, "--", "--pass-ms", "2"], environment)
    assert done.returncode == 0, done.stderr
    assert "What each arm costs (EMULATED)" in done.stdout
    assert "No bar is judged" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80
    measured = json.loads((out / "overhead.json").read_text())
    assert measured["ended"] == "complete"
    # A switched server is asked twice a round.
    assert len(measured["rounds"]) == 2 * 2 * (7 + 1)
    assert len(measured["servers"]) == 2 * 7
    recorded = {one["arm"]: (one["events"], one["dropped"]) for one in measured["servers"]}
    launches = {one["arm"]: one["launches"] for one in measured["servers"]}
    assert launches.pop("clean") is None
    assert min(launches.values()) > 0
    assert recorded["clean"] == (None, None)
    assert recorded["callbacks"] == recorded["no-op"] == (0, 0)
    blocks, writes, switched = (recorded[arm] for arm in ("blocks", "writes", "switched"))
    assert 0 < blocks[0] < writes[0]
    assert switched[0] > 0
    of_switched = [one["arm"] for one in measured["rounds"] if one["arm"].startswith("switched")]
    assert of_switched == ["switched off", "switched", "switched", "switched off"] * 2
    assert (blocks[1], writes[1]) == (0, 0)
    assert {one["gpu_memory_mib"] for one in measured["servers"]} == {None}
    assert {one["engine_ended"] for one in measured["servers"]} == {"exit status 0"}
    for one in measured["rounds"]:
        assert [len(batch["gaps_ms"]) for batch in one["batches"]] == [5 * 5, 2 * 5]
        assert len(one["prefill_ttft_ms"]) == 3
    assert not list(out.glob("*/*/raw"))

    again = run([*COMMAND, "--from", str(out)], environment)
    assert (again.returncode, again.stdout) == (0, done.stdout)
    checked = run([*COMMAND, "--from", str(out), "--check", "--json"], environment)
    assert checked.returncode == 4
    document = json.loads(checked.stdout)
    assert (document["setup"]["emulated"], document["bars"]) == (True, [])


@needs_libraries
def test_one_after_another_and_an_arm_that_cannot_be_measured_here(tmp_path):
    out = tmp_path / "cost"
    options = ["--engine", "emulator", "--starts", "1", "--rounds", "1", "--side-by-side", "1"]
    command = [*COMMAND, *SMALL, *options, "--arms", "clean,blocks,memcheck", "--out", str(out)]
    done = run(command, os.environ | {"PYTHONPATH": str(REPOSITORY)})
    assert done.returncode == 0, done.stderr
    assert "arm memcheck is left out: compute-sanitizer watches a real GPU only" in done.stderr
    measured = json.loads((out / "overhead.json").read_text())
    assert list(measured["skipped"]) == ["memcheck"]
    assert sorted((one["group"], one["arm"]) for one in measured["servers"]) in (
        [(1, "blocks"), (2, "clean")],
        [(1, "clean"), (2, "blocks")],
    )


def test_the_whole_way_with_a_stand_in_for_vllm(here):
    machine, environment = here
    options = ["--arms", "clean,blocks,memcheck", "--starts", "2", "--rounds", "1", "--json"]
    done = run(on_stand_in(machine, *options), environment)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["setup"]["side_by_side"] == 3
    assert document["setup"]["arguments"] == ["--gpu-memory-utilization", "0.27"]
    assert {one["gpu_memory_mib"] for one in document["servers"]} == {USED_MIB}
    assert {bar["arm"] for bar in document["bars"]} == {"blocks"}
    logs = {path.parent.name: path.read_text() for path in machine.out.glob("*/*/server.log")}
    assert "memcheck begins" in logs["memcheck"]
    assert "memcheck begins" not in logs["clean"]
    assert machine.left_behind() == []


def test_vllms_own_profiler_runs_in_each_round_and_leaves_no_trace(here):
    machine, environment = here
    options = ["--arms", "clean,torch-profiler", "--starts", "1", "--rounds", "2", "--json"]
    done = run(on_stand_in(machine, *options), environment)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert {cost["arm"] for cost in document["costs"]} == {"clean", "torch-profiler"}
    logs = {path.parent.name: path.read_text() for path in machine.out.glob("*/*/server.log")}
    assert logs["torch-profiler"].count("INFO /start_profile\nINFO /stop_profile\n") == 2
    assert "profile" not in logs["clean"]
    assert not list(machine.out.rglob("traces"))
    assert machine.left_behind() == []


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        ("no_profiler", "/start_profile: HTTP 404; this vLLM has no profiler"),
        ("no_trace", "the profiler left no trace, so what it costs was not measured"),
    ],
)
def test_a_profiler_that_does_not_profile(here, fault, text):
    machine, environment = here
    options = ["--arms", "clean,torch-profiler", "--starts", "1", "--rounds", "1"]
    done = run(on_stand_in(machine, *options), environment, KVTRACE_TEST_FAULT=fault)
    assert done.returncode == 3, done.stderr
    assert "arm torch-profiler: " in done.stderr
    assert text in done.stderr
    assert machine.left_behind() == []


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        ("exits_at_start", "the engine ended before it was ready, exit status 7"),
        ("dies", "request 0 failed: "),
        ("stream_stops", "usage says None tokens, expected 6"),
    ],
)
def test_a_server_that_fails(here, fault, text):
    machine, environment = here
    options = ["--arms", "clean,blocks", "--starts", "1", "--rounds", "1"]
    done = run(on_stand_in(machine, *options), environment, KVTRACE_TEST_FAULT=fault)
    assert (done.returncode, done.stdout) == (3, ""), done.stderr
    assert text in done.stderr
    assert "start 1, arm " in done.stderr
    assert "nothing was measured" in done.stderr
    assert kept(machine)["ended"] == "failed"
    assert machine.left_behind() == []
    again = run([*COMMAND, "--from", str(machine.out)], environment)
    assert again.returncode == 4
    assert "nothing was measured: failed" in again.stderr


def test_an_arm_that_does_not_record_measures_nothing(here):
    machine, environment = here
    options = ["--arms", "clean,blocks", "--starts", "1", "--rounds", "1"]
    done = run(on_stand_in(machine, *options), environment, KVTRACE_TEST_RECORD="0")
    assert done.returncode == 4
    assert "arm blocks: the server is ready, but the injector has not attached" in done.stderr
    assert machine.left_behind() == []


def test_arms_that_lack_something_are_left_out_with_the_reason(here):
    machine, environment = here
    machine.injector.unlink()
    done = run(on_stand_in(machine, "--arms", "clean,blocks"), environment)
    assert done.returncode == 2
    assert "arm blocks is left out: injector: " in done.stderr
    assert "none of them but the clean one can be measured here" in done.stderr
    assert not machine.out.exists()


def test_a_server_that_is_never_ready(here):
    machine, environment = here
    options = ["--arms", "clean,blocks", "--ready-timeout", "1"]
    done = run(on_stand_in(machine, *options), environment, KVTRACE_TEST_FAULT="never_healthy")
    assert done.returncode == 3
    assert "not ready within 1 s; raise --ready-timeout" in done.stderr
    assert machine.left_behind() == []


def interrupted_at(here, phase, number, **more):
    """Start a measurement, signal it in a phase, and return its exit code and what it said."""
    machine, environment = here
    said = machine.out.parent / "stderr"
    options = ["--arms", "clean,blocks", "--starts", "1", "--rounds", "1000"]
    with said.open("w") as file:
        process = subprocess.Popen(
            on_stand_in(machine, *options),
            env=environment | more,
            stdout=subprocess.DEVNULL,
            stderr=file,
        )
    wait_until(lambda: phase in said.read_text() or process.poll() is not None)
    wait_until(machine.pids.exists)
    process.send_signal(number)
    return process.wait(timeout=60), said


def test_an_interrupt_before_the_servers_are_ready_leaves_none(here):
    machine = here[0]
    fault = {"KVTRACE_TEST_FAULT": "never_healthy"}
    code, said = interrupted_at(here, "starting clean", signal.SIGINT, **fault)
    assert code == 130
    assert "interrupted; nothing was measured" in said.read_text()
    assert machine.left_behind() == []
    assert kept(machine)["ended"] == "interrupted"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_keeps_what_was_measured(here, number):
    machine, environment = here
    code, said = interrupted_at(here, "round 3 of", number)
    assert code == 130
    assert "interrupted; measured until then: " in said.read_text()
    assert "Traceback" not in said.read_text()
    assert machine.left_behind() == []
    measured = kept(machine)
    assert measured["ended"] == "interrupted"
    assert len(measured["rounds"]) >= 4
    assert len(measured["servers"]) == 2
    again = run([*COMMAND, "--from", str(machine.out)], environment)
    assert again.returncode == 0
    assert "Not complete (interrupted)" in again.stdout


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "--model: nothing found"),
        (["--from", "nowhere", "--model", "x"], "--from: measures nothing"),
        (["--from", "nowhere"], "nowhere: no overhead.json in it"),
        ([*SMALL, "--arms", "blocks"], "expected clean and others"),
        ([*SMALL, "--arms", "clean"], "expected clean and others"),
        ([*SMALL, "--batch", "one"], "--batch: found 'one'"),
        ([*SMALL, "--engine", "other"], "--engine: found other"),
    ],
)
def test_usage_errors(here, options, message):
    machine, environment = here
    done = run([*COMMAND, *options], environment)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert not machine.pids.exists()


def test_what_servers_on_an_h200_cost_part_by_part():
    recorded = REPOSITORY / "tests/data/h200-cost/parts-1"
    done = run([*COMMAND, "--from", str(recorded), "--json"], dict(os.environ))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    changes = {
        (one["figure"], one["arm"]): round(one["change_percent"], 2)
        for one in found["costs"]
        if one["arm"] != "clean"
    }
    of_arms = {
        figure: [changes[figure, arm] for arm in ("callbacks", "no-op", "blocks")]
        for figure, _ in changes
    }
    assert of_arms["ITL, batch 1, ms"] == [1.37, 2.14, 1.90]
    assert of_arms["ITL, batch 8, ms"] == [0.93, 1.82, 1.58]
    assert of_arms["ITL, batch 64, ms"] == [0.59, 1.34, 0.64]
    assert of_arms["prefill TTFT, ms"] == [0.36, 1.08, 0.44]
    # One start has no interval, so no bar is said to be met or missed.
    assert {bar["verdict"] for bar in found["bars"]} == {"cannot tell"}
    assert [one["dropped"] for one in found["servers"] if one["arm"] == "blocks"] == [0]


def test_a_directory_that_is_not_empty_is_left_alone(here):
    machine, environment = here
    machine.out.mkdir()
    (machine.out / "mine").touch()
    done = run(on_stand_in(machine), environment)
    assert done.returncode == 2
    assert "not empty; choose another --out" in done.stderr
