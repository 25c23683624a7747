"""`kvtrace exec`: any command of the user's, recorded; how it may end, and what it may leave."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from emulated_runs import needs_libraries
from machine import make_machine, wait_until

REPOSITORY = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "kvtrace_cli", "exec"]
# Leaves what an injector would, closed at an orderly end: a plain launch and one replay.
RECORDING = """
import atexit, sys
sys.path.insert(0, {directory!r})
import fake_engine
made = fake_engine.recorder()
made.step("replay")
made.publish()
atexit.register(made.close)
"""


@pytest.fixture
def here(tmp_path):
    machine, environment = make_machine(tmp_path)
    ours = {name: text for name, text in os.environ.items() if name != "CUDA_INJECTION64_PATH"}
    return machine, ours | environment | {"PYTHONPATH": str(REPOSITORY), "COLUMNS": "80"}


def options(machine):
    return [
        *("--out", str(machine.out), "--injector", str(machine.injector)),
        *("--sanitizer-library", str(machine.sanitizer_library)),
    ]


def execute(here, *command, extra=(), given=None):
    machine, ours = here
    return subprocess.run(
        [*COMMAND, *options(machine), *extra, "--", *command],
        env=ours,
        cwd=machine.out.parent,
        input=given,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def recording(then=""):
    script = RECORDING.format(directory=str(Path(__file__).parent))
    return sys.executable, "-c", script + then


def manifest(here):
    return json.loads((here[0].out / "manifest.json").read_text())


def is_complete(here):
    assert (here[0].out / "COMPLETE").exists() is not (here[0].out / "INCOMPLETE").exists()
    return (here[0].out / "COMPLETE").exists()


class Running:
    """A `kvtrace exec` in progress; its command says `ready` on the stdout that it inherits."""

    def __init__(self, here, *command):
        machine, ours = here
        self._stderr = machine.out.parent / "stderr"
        with self._stderr.open("w") as file:
            self.process = subprocess.Popen(
                [*COMMAND, *options(machine), "--", *command],
                env=ours,
                stdout=subprocess.PIPE,
                stderr=file,
                text=True,
            )
        assert self.process.stdout.readline() == "ready\n"

    @property
    def stderr(self):
        return self._stderr.read_text()

    def end(self):
        """Return the exit code and what was printed."""
        out, _ = self.process.communicate(timeout=60)
        return self.process.returncode, out


def test_a_command_that_records_is_reconciled(here):
    done = execute(here, *recording())
    assert done.returncode == 0, done.stderr
    assert "agrees" in done.stdout
    assert "recorded 36 block events, 8 launch records, 0 dropped" in done.stderr
    assert is_complete(here)
    assert (here[0].out / "summary.json").exists()
    assert not (here[0].out / "server.log").exists()
    assert not (here[0].out / "requests.jsonl").exists()


def test_the_manifest_says_command_place_and_end(here):
    execute(here, "sh", "-c", "exit 5")
    written = manifest(here)
    assert (written["subcommand"], written["engine"], written["traced"]) == ("exec", "vllm", True)
    assert written["command"] == ["sh", "-c", "exit 5"]
    assert written["working_directory"] == str(here[0].out.parent)
    assert written["outcome"]["status"] == "complete"
    assert written["outcome"]["command_exit_status"] == 5
    assert written["outcome"]["command_signals"] == []
    assert written["model_source"] is None
    assert written["environment"]["CUDA_INJECTION64_PATH"] == str(here[0].injector)
    assert written["environment"]["KVTRACE_STEPS"] == str(here[0].out / "raw")


def test_a_command_that_records_nothing_is_no_success(here):
    done = execute(here, "true")
    assert done.returncode == 4, done.stderr
    assert "the injector never attached" in done.stderr
    assert is_complete(here)


def test_a_command_that_fails_exits_3_after_the_tables(here):
    done = execute(here, *recording("sys.exit(7)"))
    assert done.returncode == 3, done.stderr
    assert "agrees" in done.stdout
    assert "the command ended with exit status 7, so this is no success" in done.stderr
    assert is_complete(here)
    assert execute(here, "false", extra=["--force"]).returncode == 3


def test_a_command_that_is_killed_stays_incomplete(here):
    done = execute(here, *recording("import os; os.kill(os.getpid(), 11)"))
    assert done.returncode == 3, done.stderr
    assert "the command was killed by SIGSEGV" in done.stderr
    assert "--allow-incomplete` reads it" in done.stderr
    assert not is_complete(here)
    assert manifest(here)["outcome"]["command_exit_status"] == -11


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (
            ["no-such-program"],
            "command: no-such-program: no such program, or not executable; give a program",
        ),
        (["./no-such-file"], "command: ./no-such-file: no such program, or not executable"),
        ([], "no command; expected it after `--`"),
    ],
)
def test_without_a_program_nothing_is_started_and_nothing_written(here, command, message):
    done = execute(here, *command)
    assert done.returncode == 2, done.stderr
    assert message in done.stderr
    assert not here[0].out.exists()


def test_a_file_that_is_no_program_fails_the_run(here):
    path = here[0].out.parent / "text"
    path.write_text("no program")
    path.chmod(0o755)
    done = execute(here, str(path))
    assert done.returncode == 3, done.stderr
    assert "cannot be started: Exec format error" in done.stderr


def test_input_output_and_place_are_the_commands_own(here):
    done = execute(here, "sh", "-c", "cat; pwd; echo said >&2", given="given\n")
    assert done.stdout.startswith(f"given\n{here[0].out.parent}\n")
    assert "said\n" in done.stderr


def test_json_follows_what_the_command_prints(here):
    done = execute(here, *recording("print('mine', flush=True)"), extra=["--json"])
    mine, _, document = done.stdout.partition("\n")
    assert mine == "mine"
    assert json.loads(document)["verdict"] == "agrees"


def test_an_earlier_run_is_replaced_only_when_asked(here):
    execute(here, "true")
    done = execute(here, "true")
    assert (done.returncode, "--force" in done.stderr) == (2, True)


# A server that is stopped by Ctrl-C ends in order, and that is how it is meant to be used.
SERVER = "import signal, time\nsignal.signal({signal}, lambda *_: sys.exit({status}))\n"
WAIT = "print('ready', flush=True)\nwhile True: time.sleep(0.05)\n"


def server(status, number="signal.SIGINT"):
    return recording(SERVER.format(signal=number, status=status) + WAIT)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_server_that_ends_in_order_when_interrupted_is_reconciled(here, number):
    running = Running(here, *server(0, f"signal.{number.name}"))
    running.process.send_signal(number)
    code, out = running.end()
    assert code == 0, running.stderr
    assert "agrees" in out
    assert is_complete(here)
    assert manifest(here)["outcome"]["command_signals"] == [number.name]
    assert f"kvtrace: {number.name}: handed on to the command's first process" in running.stderr


def test_a_command_that_fails_when_interrupted_exits_130(here):
    running = Running(here, *server(1))
    running.process.send_signal(signal.SIGINT)
    code, out = running.end()
    assert code == 130, running.stderr
    assert "agrees" in out
    assert "exit status 1 after it was interrupted" in running.stderr
    assert is_complete(here)


def test_a_command_that_dies_of_the_interrupt_stays_incomplete(here):
    running = Running(here, *recording("import time\n" + WAIT))
    running.process.send_signal(signal.SIGINT)
    code, _ = running.end()
    assert code == 130, running.stderr
    assert not is_complete(here)
    assert "interrupted; recorded until then: 36 block events" in running.stderr
    assert manifest(here)["outcome"]["command_exit_status"] == -signal.SIGINT


# A parent with a child in its group; each says which interrupts it heard. The child records.
FAMILY = """
import os, signal, subprocess, sys, time
name, told, child_script = sys.argv[1:]
def hear(*_):
    os.write(1, f"{name} heard\\n".encode())
    if name == "child":
        sys.exit(0)
    if told == "tells":
        child.terminate()
if (name, told) != ("parent", "dies"):
    signal.signal(signal.SIGINT, hear)
    signal.signal(signal.SIGTERM, hear)
if name == "parent":
    child = subprocess.Popen([sys.executable, "-c", child_script, "child", told, ""])
    while child.poll() is None:
        time.sleep(0.05)
    sys.exit(child.returncode)
print("ready", flush=True)
while True:
    time.sleep(0.05)
"""


def family(told):
    child = recording(FAMILY)[-1]
    return sys.executable, "-c", FAMILY, "parent", told, child


def heard(out):
    return [line for line in out.splitlines() if line.endswith("heard")]


def test_the_first_interrupt_is_for_the_first_process_alone(here):
    """It then ends its engine in order, by a signal that the engine knows: so vLLM does."""
    running = Running(here, *family("tells"))
    running.process.send_signal(signal.SIGINT)
    code, out = running.end()
    assert code == 0, running.stderr
    assert heard(out) == ["parent heard", "child heard"]
    assert "agrees" in out
    assert manifest(here)["outcome"]["command_signals"] == ["SIGINT"]
    assert "a second one reaches its whole process group, a third ends it by" in running.stderr


def test_the_second_interrupt_is_for_the_whole_group(here):
    running = Running(here, *family("waits"))
    running.process.send_signal(signal.SIGINT)
    wait_until(lambda: "handed on to the command's first process" in running.stderr)
    time.sleep(0.3)
    assert running.process.poll() is None
    running.process.send_signal(signal.SIGINT)
    code, out = running.end()
    assert code == 0, running.stderr
    assert sorted(heard(out)) == ["child heard", "parent heard", "parent heard"]
    assert is_complete(here)
    assert manifest(here)["outcome"]["command_signals"] == ["SIGINT", "SIGINT"]
    assert "handed on to the command's whole process group; once more ends it" in running.stderr


def test_a_first_process_that_dies_of_the_interrupt_told_nobody_so_its_group_hears_it(here):
    """As a shell does that runs a pipeline."""
    running = Running(here, *family("dies"))
    running.process.send_signal(signal.SIGINT)
    code, out = running.end()
    assert code == 130, running.stderr
    assert heard(out) == ["child heard"]
    assert manifest(here)["outcome"]["command_exit_status"] == -signal.SIGINT
    assert manifest(here)["outcome"]["command_signals"] == ["SIGINT"]
    assert not is_complete(here)


def test_a_third_interrupt_ends_a_command_that_ignores_the_others(here):
    script = "import signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n" + WAIT
    running = Running(here, sys.executable, "-c", script)
    for handed_on in ("first process", "whole process group"):
        running.process.send_signal(signal.SIGINT)
        wait_until(lambda to=handed_on: f"handed on to the command's {to}" in running.stderr)
        time.sleep(0.3)
        assert running.process.poll() is None
    running.process.send_signal(signal.SIGINT)
    code, _ = running.end()
    assert code == 130, running.stderr
    assert manifest(here)["outcome"]["command_signals"] == ["SIGINT"] * 3
    assert manifest(here)["outcome"]["command_exit_status"] == -signal.SIGTERM
    assert not is_complete(here)


def test_an_engine_that_was_killed_leaves_the_verdict_inconclusive(here):
    """The first process ends well, and its recorder had no time to: as vLLM's engine by default."""
    child = recording("print('ready', flush=True)\nimport time\ntime.sleep(600)\n")[-1]
    parent = (
        "import subprocess, sys\n"
        f"child = subprocess.Popen([sys.executable, '-c', {child!r}], stdout=subprocess.PIPE)\n"
        "child.stdout.readline()\n"
        "child.kill()\n"
    )
    done = execute(here, sys.executable, "-c", parent)
    assert done.returncode == 4, done.stderr
    assert is_complete(here)
    said = " ".join(done.stdout.split())
    assert "did not close its files in order" in said
    assert "--shutdown-timeout 30" in said


def spawning(here, then=""):
    """Return a command that records, and leaves a child in a session of its own behind."""
    return recording(
        "import subprocess, time\n"
        f"pids = open({str(here[0].pids)!r}, 'a')\n"
        "child = subprocess.Popen(['sleep', '600'], start_new_session=True, close_fds=True,\n"
        "    stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)\n"
        "print(child.pid, file=pids, flush=True)\n" + then
    )


def test_what_it_leaves_behind_is_told_and_left_alone(here):
    done = execute(here, *spawning(here))
    (child,) = here[0].left_behind()
    os.kill(child, signal.SIGKILL)
    assert done.returncode == 0, done.stderr
    assert f"processes of the command still run: {child}; they are left alone" in done.stderr
    assert is_complete(here)


def test_what_it_leaves_behind_is_ended_when_interrupted(here):
    handler = "import signal\nsignal.signal(signal.SIGINT, lambda *_: sys.exit(0))\n"
    running = Running(here, *spawning(here, handler + WAIT))
    running.process.send_signal(signal.SIGINT)
    code, _ = running.end()
    assert code == 0, running.stderr
    assert "ending what the command left behind" in running.stderr
    assert here[0].left_behind() == []
    assert is_complete(here)


def test_a_child_that_still_records_leaves_the_run_inconclusive(here):
    """The first process ends and its recorder lives on, as a server in the background does."""
    script = RECORDING.format(directory=str(Path(__file__).parent))
    child = f"{script}import os, time\nopen({str(here[0].pids)!r}, 'w').write(str(os.getpid()))\n"
    child += "time.sleep(600)\n"
    parent = (
        "import pathlib, subprocess, sys, time\n"
        f"subprocess.Popen([sys.executable, '-c', {child!r}], stdin=subprocess.DEVNULL,\n"
        "    stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)\n"
        f"while not pathlib.Path({str(here[0].pids)!r}).exists(): time.sleep(0.02)\n"
    )
    done = execute(here, sys.executable, "-c", parent)
    wait_until(lambda: len(here[0].left_behind()) == 1)
    (pid,) = here[0].left_behind()
    os.kill(pid, signal.SIGKILL)
    assert done.returncode == 4, done.stderr
    assert f"process {pid} of it still runs and records; end it" in done.stderr
    assert not is_complete(here)


EMULATED = """
from pathlib import Path
from kvtrace_cli.capture.libraries import find_emulator_library
from kvtrace_cli.emulator.driver import Driver

driver = Driver(find_emulator_library(None))
name = "reshape_and_cache_flash_kernel"
function = driver.load_module((name,))[name]
driver.launch(function, 5)
driver.begin_capture()
driver.launch(function, 2)
graph_exec = driver.end_capture()
for _ in range(3):
    driver.replay(graph_exec)
driver.synchronize()
print(driver.blocks_run(function), flush=True)
"""


@needs_libraries
def test_any_process_that_loads_the_emulator_is_recorded(here, tmp_path):
    out = tmp_path / "emulated"
    done = subprocess.run(
        [*COMMAND, "--engine", "emulator", "--out", out, "--", sys.executable, "-c", EMULATED],
        env=here[1],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("11\n")
    assert "recorded 11 block events, 4 launch records, 0 dropped" in done.stderr
    assert "EMULATED" in done.stdout
    assert json.loads((out / "manifest.json").read_text())["engine"] == "emulator"
