from pathlib import Path

from kvtrace_cli.capture.engine import VllmEngine
from kvtrace_cli.capture.model import Model
from kvtrace_cli.config import EngineConfig, RunConfig, Weights

DUMMY = Model("/models/q", "q", Weights.DUMMY)


def command(**engine):
    config = RunConfig("q", engine=EngineConfig(python=Path("/py"), **engine))
    return VllmEngine().command(config, DUMMY, 4000)


def test_the_default_command_spells_the_whole_set_up_out():
    assert " ".join(command()) == (
        "/py -m vllm.entrypoints.cli.main serve /models/q --served-model-name q"
        " --host 127.0.0.1 --port 4000 --dtype bfloat16 --load-format dummy"
        " --generation-config vllm --max-model-len 1024 --max-num-seqs 8"
        " --max-num-batched-tokens 512 --kv-cache-memory-bytes 8589934592"
        " --no-enable-prefix-caching --async-scheduling --attention-backend FLASH_ATTN"
        ' --compilation-config {"cudagraph_mode":"FULL_AND_PIECEWISE",'
        '"cudagraph_capture_sizes":[1,2,4,8]}'
        " --no-enable-flashinfer-autotune --shutdown-timeout 30"
    )


def test_real_weights_are_loaded_as_the_engine_likes():
    config = RunConfig("q", engine=EngineConfig(python=Path("/py")))
    real = Model("Qwen/Qwen3-14B", "Qwen3-14B", Weights.AUTO)
    assert "--load-format" not in VllmEngine().command(config, real, 1)
    assert "HF_HUB_OFFLINE" not in VllmEngine().environment({}, real)


def test_flash_attention_can_be_forced():
    assert "--attention-config.flash_attn_version=2" in command(flash_attention=2)


def test_the_users_arguments_come_last_and_so_win():
    assert command(arguments=("--enforce-eager", "--seed", "1"))[-3:] == [
        "--enforce-eager",
        "--seed",
        "1",
    ]


def test_the_users_environment_wins():
    environment = VllmEngine().environment({"VLLM_USE_FLASHINFER_SAMPLER": "1"}, DUMMY)
    assert environment["VLLM_USE_FLASHINFER_SAMPLER"] == "1"
    assert environment["HF_HUB_OFFLINE"] == "1"


def test_import_paths_survive_another_working_directory():
    environment = VllmEngine().environment({"PYTHONPATH": "site:/abs"}, DUMMY)
    assert environment["PYTHONPATH"] == f"{Path.cwd()}/site:/abs"
