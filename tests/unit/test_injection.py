from pathlib import Path

import pytest

from kvtrace_cli.capture.injection import compose_environment, write_injector_config
from kvtrace_cli.config import Bind, Patch, PatchAt, Record, RecordingConfig
from kvtrace_cli.dumps import abi
from kvtrace_cli.errors import ConfigError

INJECTOR = Path("/lib/ours.so")
CONFIG = Path("/run/raw/kvtrace.config")
BOTH = RecordingConfig(preload=True)
PRELOAD_ONLY = RecordingConfig(preload=True, injection=False)


def compose(base, recording=None, injector=INJECTOR):
    return compose_environment(
        base, recording or RecordingConfig(), injector=injector, config_path=CONFIG
    )


def write(path, recording, raw_dir=Path("/run/raw")):
    write_injector_config(
        path, recording, raw_dir=raw_dir, sanitizer_library=Path("/lib/sanitizer.so")
    )


def test_by_default_only_processes_with_cuda_load_the_injector():
    assert compose({"A": "1", "LD_PRELOAD": "/theirs.so"}) == {
        "A": "1",
        "LD_PRELOAD": "/theirs.so",
        "KVTRACE_CONFIG": str(CONFIG),
        "CUDA_INJECTION64_PATH": str(INJECTOR),
    }


def test_the_injector_is_preloaded_before_what_the_user_preloads():
    assert compose({"LD_PRELOAD": "/a.so:/b.so"}, BOTH)["LD_PRELOAD"] == (
        "/lib/ours.so:/a.so:/b.so"
    )
    assert compose({}, BOTH)["LD_PRELOAD"] == "/lib/ours.so"


def test_the_injection_variable_of_another_tool_is_refused_or_kept():
    base = {"CUDA_INJECTION64_PATH": "/other.so"}
    with pytest.raises(ConfigError, match=r"/other\.so.*unset it, or .*--no-injection --preload"):
        compose(base)
    assert compose(base, PRELOAD_ONLY)["CUDA_INJECTION64_PATH"] == "/other.so"


def test_the_injection_variable_may_already_name_ours():
    compose({"CUDA_INJECTION64_PATH": str(INJECTOR)})


@pytest.mark.parametrize("path", ["/my libs/ours.so", "/a:b/ours.so"])
def test_a_path_that_cannot_be_preloaded_is_refused(path):
    compose({}, injector=Path(path))
    with pytest.raises(ConfigError, match="space or a colon"):
        compose({}, BOTH, injector=Path(path))


def test_the_config_is_what_the_injector_reads(tmp_path):
    recording = RecordingConfig(
        kernels=("one", "two"), ring_events=64, launch_records=32, one_shot=True, stamps=False
    )
    write(tmp_path / "config", recording)
    data = (tmp_path / "config").read_bytes()
    config = abi.ffi().from_buffer("kvtrace_config *", data)
    assert len(data) == config.struct_size == abi.size_of("kvtrace_config")
    assert config.magic == abi.constant("KVTRACE_CONFIG_MAGIC")
    assert config.abi_version == abi.constant("KVTRACE_ABI_VERSION")
    assert (config.ring_events, config.launch_records) == (64, 32)
    assert config.flags == abi.constant("KVTRACE_CONFIG_ONE_SHOT") | abi.constant(
        "KVTRACE_CONFIG_NO_STAMPS"
    )
    assert config.bind_mode == abi.constant("KVTRACE_BIND_EVERY_FUNCTION")
    assert config.drain_interval_us > 0
    assert abi.ffi().string(config.output_dir) == b"/run/raw"
    assert abi.ffi().string(config.sanitizer_library) == b"/lib/sanitizer.so"
    names = [abi.ffi().string(config.targets[slot]) for slot in range(config.target_count)]
    assert names == [b"one", b"two"]


@pytest.mark.parametrize(
    ("recording", "raw_dir", "message"),
    [
        (RecordingConfig(kernels=("k" * 128,)), "/run", r"--kernel: k+\.\.\. is 128 bytes"),
        (RecordingConfig(kernels=("k",) * 17), "/run", "--kernel: found 17 names, expected 16"),
        (RecordingConfig(), "/" + "d" * 1023, "--out: .* is 1024 bytes long, expected 1023"),
    ],
)
def test_what_does_not_fit_the_config_is_refused(tmp_path, recording, raw_dir, message):
    with pytest.raises(ConfigError, match=message):
        write(tmp_path / "config", recording, Path(raw_dir))
    assert not (tmp_path / "config").exists()


def test_the_config_says_how_to_bind_and_whether_it_is_emulated(tmp_path):
    path = tmp_path / "config"
    found = []
    for bind, emulated in ((Bind.EVERY_FUNCTION, False), (Bind.TARGET_ONLY, True)):
        write_injector_config(
            path,
            RecordingConfig(bind=bind),
            raw_dir=Path("/run/raw"),
            sanitizer_library=Path("/lib/emulator.so"),
            emulated=emulated,
        )
        config = abi.ffi().from_buffer(f"{abi.CONFIG_STRUCT} *", path.read_bytes())
        found.append((config.bind_mode, config.flags))
    assert found == [(0, 0), (1, abi.constant("KVTRACE_CONFIG_EMULATED"))]


@pytest.mark.parametrize(
    ("record", "flags"),
    [
        (Record.NONE, ("KVTRACE_CONFIG_NO_PATCH",)),
        (Record.BLOCKS, ()),
        (Record.WRITES, ("KVTRACE_CONFIG_WRITES",)),
        (Record.ALL_WRITES, ("KVTRACE_CONFIG_WRITES", "KVTRACE_CONFIG_ALL_WRITES")),
    ],
)
def test_the_config_says_which_stores_become_events(tmp_path, record, flags):
    path = tmp_path / "config"
    write(path, RecordingConfig(record=record))
    config = abi.ffi().from_buffer(f"{abi.CONFIG_STRUCT} *", path.read_bytes())
    assert config.flags == sum(map(abi.constant, flags))


@pytest.mark.parametrize(
    ("recording", "flag"),
    [
        (
            RecordingConfig(patch_at=PatchAt.FIRST_LAUNCH_END),
            "KVTRACE_CONFIG_PATCH_AT_FIRST_LAUNCH_END",
        ),
        (RecordingConfig(patch=Patch.NO_OP), "KVTRACE_CONFIG_NO_OP_PATCH"),
    ],
)
def test_the_config_says_when_and_with_what_to_patch(tmp_path, recording, flag):
    path = tmp_path / "config"
    write(path, recording)
    config = abi.ffi().from_buffer(f"{abi.CONFIG_STRUCT} *", path.read_bytes())
    assert config.flags == abi.constant(flag)
