"""`kvtrace run` and `kvtrace doctor` as programs: what they print where, and how they exit."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from machine import Machine, make_machine, wait_until

REPOSITORY = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "kvtrace_cli"]


@pytest.fixture
def here(tmp_path):
    machine, environment = make_machine(tmp_path)
    ours = {name: text for name, text in os.environ.items() if name != "CUDA_INJECTION64_PATH"}
    return machine, ours | environment | {"PYTHONPATH": str(REPOSITORY), "COLUMNS": "120"}


def kvtrace(here, *arguments, **environment):
    machine, ours = here
    return subprocess.run(
        [*COMMAND, *arguments],
        env=ours | environment,
        cwd=machine.out.parent,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def run(here, *arguments, **environment):
    return kvtrace(here, "run", *here[0].options, *arguments, **environment)


class Running:
    """A `kvtrace run` in progress, to be interrupted in one of its phases."""

    def __init__(self, here, fault, *options, nohup=False):
        self.machine: Machine = here[0]
        self._stderr = self.machine.out.parent / "stderr"
        preexec = (lambda: signal.signal(signal.SIGINT, signal.SIG_IGN)) if nohup else None
        with self._stderr.open("w") as file:
            self._process = subprocess.Popen(
                [*COMMAND, "run", *self.machine.options, *options],
                env=here[1] | {"KVTRACE_TEST_FAULT": fault},
                stdout=subprocess.DEVNULL,
                stderr=file,
                preexec_fn=preexec,  # noqa: PLW1509  no thread here
            )

    def said(self, text):
        return text in self._stderr.read_text()

    def interrupt_at(self, phase, number=signal.SIGINT):
        """Wait for the phase and for the engine's process, signal, return the exit code."""
        wait_until(lambda: self.said(phase) or self._process.poll() is not None)
        wait_until(self.machine.pids.exists)
        self._process.send_signal(number)
        return self._process.wait(timeout=60)


def test_a_run_reconciles_and_agrees(here):
    done = run(here)
    assert (done.returncode, done.stderr.count("Traceback")) == (0, 0), done.stderr
    assert "agrees" in done.stdout
    phases = ["checking this machine", "starting the engine", "ready", "warmup request 0"]
    phases += ["measured request 1", "draining", "stopping the engine"]
    said = [line.removeprefix("kvtrace: ") for line in done.stderr.splitlines()]
    assert [line for line in said if line in phases] == phases
    assert (here[0].out / "summary.json").exists()


def test_json_goes_to_stdout_alone(here):
    done = run(here, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["schema_version"] >= 1


def test_verbose_prints_the_exact_command(here):
    done = run(here, "-v", "--", "--seed", "7")
    assert "vllm.entrypoints.cli.main serve" in done.stderr
    assert "--seed 7" in done.stderr
    assert f"CUDA_INJECTION64_PATH={here[0].injector}" in done.stderr


def test_without_tracing_exit_0_only_says_that_requests_were_answered(here):
    done = run(here, "--no-trace", "--stream", "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["traced"] is False
    assert len(document["requests"][1]["token_gaps_ms"]) == 7
    assert "not traced: 2 requests answered" in run(here, "--no-trace", "--force").stdout


def request_file(here, *lines):
    path = here[0].out.parent / "requests.jsonl"
    path.write_text("".join(f"{line}\n" for line in lines))
    return str(path)


def test_requests_of_a_file_are_sent_at_once(here):
    lines = ['{"prompt_tokens": 1200, "max_tokens": 6, "stream": true}'] * 2
    lines += ['{"prompt_tokens": 4, "max_tokens": 2}'] * 2
    options = ["--requests", request_file(here, *lines), "--concurrency", "2", "--no-trace"]
    done = run(here, *options, "--json", KVTRACE_TEST_TOGETHER="2")
    assert done.returncode == 0, done.stderr
    assert "kvtrace: 4 measured requests, up to 2 at once" in done.stderr
    answered = json.loads(done.stdout)["requests"]
    assert [one["request_index"] for one in answered] == [0, 1, 2, 3, 4]
    assert [one["returned_tokens"] for one in answered] == [1, 6, 6, 2, 2]
    assert answered[1]["token_gaps_ms"] is not None
    assert answered[3]["token_gaps_ms"] is None
    command = json.loads((here[0].out / "manifest.json").read_text())["command"]
    assert command[command.index("--max-model-len") + 1] == "2048"
    assert command[command.index("--max-num-seqs") + 1] == "8"


def test_repeats_are_sent_at_once_and_the_engine_takes_them_all(here):
    options = ["--repeat", "10", "--concurrency", "10", "--max-tokens", "2"]
    done = run(here, *options, KVTRACE_TEST_TOGETHER="10")
    assert done.returncode in (0, 4), done.stderr
    command = json.loads((here[0].out / "manifest.json").read_text())["command"]
    assert command[command.index("--max-num-seqs") + 1] == "10"


def test_a_failed_request_of_many_exits_3(here):
    lines = ['{"prompt_tokens": 4, "max_tokens": 3}', '{"prompt_tokens": 4, "max_tokens": 4}']
    options = ["--requests", request_file(here, *lines), "--concurrency", "2"]
    done = run(here, *options, KVTRACE_TEST_TOGETHER="2", KVTRACE_TEST_FAULT="one_fails")
    assert done.returncode == 3, done.stderr
    assert "measured request 1 failed: HTTP 500" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_bad_line_exits_2_and_starts_nothing(here):
    path = request_file(here, '{"prompt_tokens": 4, "max_tokens": 2}', '{"max_tokens": 2}')
    done = run(here, "--requests", path)
    assert done.returncode == 2, done.stderr
    assert f"{path}: line 2: expected either prompt_token_ids" in done.stderr
    assert not here[0].out.exists()


def test_an_injector_that_never_attached_is_no_success(here):
    done = run(here, KVTRACE_TEST_RECORD="0")
    assert done.returncode == 4, done.stderr
    assert "the injector never attached" in done.stderr


def test_a_failed_run_exits_3_and_can_still_be_read(here):
    done = run(here, KVTRACE_TEST_FAULT="killed")
    assert done.returncode == 3, done.stderr
    assert "killed by SIGKILL" in done.stderr
    assert "Traceback" not in done.stderr
    again = kvtrace(here, "reconcile", str(here[0].out))
    assert again.returncode == 2
    again = kvtrace(here, "reconcile", str(here[0].out), "--allow-incomplete")
    assert again.returncode in (1, 4), again.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--ring-events", "1000"], "--ring-events: found 1000, expected a power of two"),
        (["--capture-sizes", "1,two"], "--capture-sizes: found '1,two'"),
        (["--engine", "other"], "--engine: found other, expected one of vllm"),
        (["--max-tokens", "many"], "--max-tokens"),
        (["--record", "reads"], "'reads' is not one of 'none', 'blocks', 'writes', 'all-writes'"),
        (["--concurrency", "0"], "--concurrency: found 0, expected 1 or more"),
        (["--max-num-seqs", "0"], "--max-num-seqs: found 0, expected 1 or more"),
        (["--requests", "none.jsonl"], "--requests none.jsonl: cannot be read"),
        (["--requests", "x", "--max-tokens", "8"], "--max-tokens: of no use with --requests"),
        (["--requests", "x", "--stream"], "--stream: of no use with --requests"),
        (["extra"], "unexpected argument 'extra'"),
        (["--python", "/no/python"], "vllm: /no/python does not run"),
    ],
)
def test_bad_input_exits_2_and_starts_nothing(here, arguments, message):
    done = run(here, *arguments)
    assert done.returncode == 2, done.stderr
    assert message in done.stderr
    assert not here[0].out.exists()


@pytest.mark.parametrize(
    ("fault", "phase", "number"),
    [
        ("never_healthy", "starting the engine", signal.SIGINT),
        ("never_healthy", "starting the engine", signal.SIGTERM),
        ("hang", "measured request 1", signal.SIGINT),
        ("hang", "measured request 1", signal.SIGHUP),
        ("children", "draining", signal.SIGINT),
        ("ignores_sigint", "stopping the engine", signal.SIGINT),
    ],
)
def test_an_interrupt_in_any_phase_exits_130_and_leaves_nothing(here, fault, phase, number):
    code = Running(here, fault).interrupt_at(phase, number)
    assert code == 130
    assert here[0].left_behind() == []
    assert (here[0].out / "INCOMPLETE").exists()
    assert json.loads((here[0].out / "manifest.json").read_text())["outcome"]["status"] == (
        "interrupted"
    )


def test_an_interrupt_of_many_requests_leaves_nothing(here):
    running = Running(here, "hang", "--repeat", "4", "--concurrency", "4", "-v")
    assert running.interrupt_at("measured request 4 sent") == 130
    assert here[0].left_behind() == []


def test_a_run_in_the_background_of_a_script_hears_an_interrupt(here):
    """Such a shell starts us with SIGINT ignored, which the engine would inherit."""
    code = Running(here, "hang", nohup=True).interrupt_at("measured request 1")
    assert code == 130
    assert here[0].left_behind() == []


def test_doctor_says_what_is_there(here):
    machine = here[0]
    done = kvtrace(
        here,
        *("doctor", "--python", str(machine.python), "--injector", str(machine.injector)),
        *("--sanitizer-library", str(machine.sanitizer_library)),
    )
    assert "NVIDIA H200 (sm 9.0)" in done.stdout
    assert "vLLM 0.26.0, torch 2.11.0" in done.stdout
    assert done.returncode == 0, done.stdout


def test_doctor_exits_4_where_nothing_can_be_recorded(here, tmp_path):
    done = kvtrace(here, "doctor", "--json", "--injector", str(tmp_path / "none.so"))
    document = json.loads(done.stdout)
    assert (done.returncode, document["can_record"]) == (4, False)
    failed = {check["name"]: check for check in document["checks"] if check["status"] == "fail"}
    assert "no such file" in failed["injector"]["found"]
    assert failed["injector"]["next_step"]
