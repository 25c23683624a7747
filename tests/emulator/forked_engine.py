"""An engine in a child of multiprocessing, as vLLM has it for an `LLM` in a script.

    python forked_engine.py EMULATOR START_METHOD ENDING

It runs one step on the emulated driver, prints how many blocks entered, and ends:
    return, raise    in order, by itself or by an error
    terminate        in order, by a signal that it handles
    launch           in order, but an engine's finalizer launches once more
    fork             in order, after a plain fork of it, which knows nothing of the recording, ended
    unknown          in order, but the plug-in understood nothing of it
    kill             by SIGKILL
"""

import json
import multiprocessing
import os
import signal
import sys
import time
from multiprocessing import util
from pathlib import Path

from kvtrace_cli.emulator.driver import Driver
from kvtrace_cli.engine_site.kvtrace_engine_plugin.recorder import StepRecorder
from kvtrace_cli.engine_site.kvtrace_engine_plugin.session import Session

BLOCKS = 285


def engine(library: str, ending: str) -> None:
    """Run a step and end."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    driver = Driver(Path(library))
    target = driver.load_module(("probe_target",))["probe_target"]

    def launch_step() -> None:
        driver.launch(target, BLOCKS)
        driver.synchronize()

    # An engine's own finalizers are of any age and priority.
    if ending == "launch":
        util.Finalize(None, launch_step, exitpriority=-1000)
    directory, injector = os.environ["KVTRACE_STEPS"], os.environ["KVTRACE_INJECTOR"]
    if ending == "unknown":
        Session(directory, injector, "v2").fail("load_model", ValueError("an engine of next year"))
    else:
        begin_step(directory, injector)
    launch_step()
    if ending == "fork":
        end_a_plain_fork()
        launch_step()
    say(pid=os.getpid(), blocks=driver.blocks_run(target))
    if ending == "kill":
        time.sleep(0.1)  # longer than the drain sleeps
        os.kill(os.getpid(), signal.SIGKILL)
    if ending == "terminate":
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(10)
    if ending == "raise":
        raise RuntimeError("the engine failed")


def begin_step(directory: str, injector: str) -> None:
    """Do what the plug-in does before a step."""
    recorder = StepRecorder(
        directory,
        engine="emulator",
        engine_version="0",
        model_runner="v2",
        ranks={"tensor": 0, "pipeline": 0, "data": 0, "world": 0},
        block_sizes=[16],
        injector_path=injector,
    )
    recorder.begin_step("dummy", rows=BLOCKS)


def end_a_plain_fork() -> None:
    """Run what a child of multiprocessing runs at its end in a fork that is none."""
    child = os.fork()
    if child == 0:
        util._exit_function()
        os._exit(0)
    os.waitpid(child, 0)


def say(**values: int | None) -> None:
    """Print a line of JSON."""
    sys.stdout.write(json.dumps(values) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Start the engine and say how it ended; without a start method, be it."""
    library, method, ending = sys.argv[1:]
    if method == "none":
        engine(library, ending)
        return
    child = multiprocessing.get_context(method).Process(target=engine, args=(library, ending))
    child.start()
    child.join()
    say(exit_code=child.exitcode)


if __name__ == "__main__":
    main()
