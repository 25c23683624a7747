from pathlib import Path

import pytest

from kvtrace_cli.capture.engine import EmulatorEngine, VllmEngine, find_engine
from kvtrace_cli.capture.model import Model
from kvtrace_cli.config import EngineConfig, RecordingConfig, RunConfig, Weights
from kvtrace_cli.errors import ConfigError

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


def test_prefix_caching_is_off_unless_asked_for():
    assert "--no-enable-prefix-caching" in command()
    asked = command(prefix_caching=True)
    assert "--enable-prefix-caching" in asked
    assert "--no-enable-prefix-caching" not in asked
    config = RunConfig("q", engine=EngineConfig(engine="emulator", prefix_caching=True))
    assert "--enable-prefix-caching" in EmulatorEngine().command(config, DUMMY, 1)


def test_the_batch_is_as_large_as_asked():
    asked = " ".join(command(max_num_seqs=32, max_num_batched_tokens=64))
    assert "--max-num-seqs 32 --max-num-batched-tokens 64" in asked


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


def test_the_emulator_is_started_with_the_same_set_up(tmp_path):
    library = tmp_path / "e.so"
    library.touch()
    config = RunConfig(
        "q",
        engine=EngineConfig(engine="emulator", python=Path("/py"), arguments=("--fault", "hang")),
        recording=RecordingConfig(sanitizer_library=library),
    )
    assert EmulatorEngine().command(config, DUMMY, 4000) == [
        *("/py", "-m", "kvtrace_cli.emulator", "serve", "/models/q"),
        *("--served-model-name", "q", "--host", "127.0.0.1", "--port", "4000"),
        *("--max-model-len", "1024", "--max-num-seqs", "8", "--max-num-batched-tokens", "512"),
        *("--capture-sizes", "1,2,4,8", "--library", str(library), "--fault", "hang"),
    ]


def test_engines_are_found_by_name():
    assert [find_engine(name).is_emulated for name in ("vllm", "emulator")] == [False, True]
    with pytest.raises(ConfigError, match="expected one of vllm, emulator"):
        find_engine("other")
