"""How the server of an arm is started: its command and its environment."""

import json

import pytest

from kvtrace_cli.capture.engine import find_engine
from kvtrace_cli.capture.libraries import Injector
from kvtrace_cli.capture.model import resolve_model
from kvtrace_cli.capture.overhead_arm_server import AbleArm, ArmServer, Server, Setting, server_dir
from kvtrace_cli.capture.overhead_arms import ARMS, Arm
from kvtrace_cli.capture.overhead_plan import OverheadPlan
from kvtrace_cli.capture.preflight import Preflight
from kvtrace_cli.config import Weights

BASE = {"PATH": "/bin", "KVTRACE_CONFIG": "/outer/config", "KVTRACE_STEPS": "/outer"}


@pytest.fixture
def started(tmp_path, monkeypatch):
    """Return what an arm's server would be started with."""
    plan = OverheadPlan("Qwen3-14B")
    model = resolve_model(plan.model, Weights.DUMMY)
    setting = Setting(plan, plan.run_config(None, None), find_engine("vllm"), model)

    def launch(arm, preflight=None):
        kept = {}

        def start(command, environment, *, run_dir, log_path):
            kept.update(command=command, environment=environment, run_dir=run_dir, log=log_path)

        monkeypatch.setattr(Server, "start", start)
        run_dir = server_dir(tmp_path, 1, 2, arm.name)
        ArmServer(AbleArm(arm, preflight), setting, run_dir, start=1, group=2).launch(BASE)
        return kept

    return launch


def test_an_arm_is_one_entry_that_changes_what_it_says(started):
    arm = Arm("wrapped", "", prefix=("wrapper", "--flag"), environment={"SOME_SETTING": "1"})
    clean, wrapped = started(ARMS["clean"]), started(arm)
    assert wrapped["command"][:2] == ["wrapper", "--flag"]
    port = clean["command"].index("--port") + 1
    clean["command"][port] = wrapped["command"][port + 2]
    assert wrapped["command"][2:] == clean["command"]
    assert wrapped["environment"] == clean["environment"] | {"SOME_SETTING": "1"}
    assert wrapped["run_dir"].parts[-2:] == ("start-1-2", "wrapped")


def test_the_clean_server_has_nothing_of_ours(started):
    environment = started(ARMS["clean"])["environment"]
    assert not {name for name in environment if "KVTRACE" in name or "INJECTION" in name}


def test_an_arm_that_records_has_the_injector(started, tmp_path):
    library = tmp_path / "libinjector.so"
    preflight = Preflight(
        injector=Injector(library, 1, "test"), sanitizer_library=tmp_path / "s.so"
    )
    kept = started(ARMS["blocks"], preflight)
    assert kept["environment"]["CUDA_INJECTION64_PATH"] == str(library)
    assert kept["environment"]["KVTRACE_CONFIG"].startswith(str(kept["run_dir"]))


def test_a_switched_arm_has_its_switch_before_it_starts(started, tmp_path):
    preflight = Preflight(
        injector=Injector(tmp_path / "i.so", 1, "test"), sanitizer_library=tmp_path / "s.so"
    )
    kept = started(ARMS["switched"], preflight)
    assert (kept["run_dir"] / "raw" / "kvtrace.switch").read_bytes() == bytes(8)
    assert not (started(ARMS["blocks"], preflight)["run_dir"] / "raw" / "kvtrace.switch").exists()


def test_vllms_profiler_is_told_where_to_write(started):
    kept = started(ARMS["torch-profiler"])
    option, text = kept["command"][-2:]
    assert option == "--profiler-config"
    config = json.loads(text)
    assert config["profiler"] == "torch"
    assert config["torch_profiler_dir"] == str(kept["run_dir"] / "traces")
    assert "CUDA_INJECTION64_PATH" not in kept["environment"]
