"""The CUPTI observer end to end: built, loaded, played to by a stand-in for CUPTI, and read."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from builders import Trace, write_run
from integration.machine import make_machine

from kvtrace_cli.capture.injection import write_activity_config
from kvtrace_cli.capture.libraries import find_injector
from kvtrace_cli.config import Observer, RecordingConfig
from kvtrace_cli.dumps import abi
from kvtrace_cli.dumps.activity import read_run_activities
from kvtrace_cli.dumps.run_dir import RunDir, read_journal
from kvtrace_cli.errors import ExitCode

ROOT = Path(__file__).parents[2]
NATIVE = ROOT / "tests/native"
TARGET = "_Z30reshape_and_cache_flash_kernelIttEvPKT_"
SANITIZERS = {
    "plain": [],
    "address": ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"],
    "thread": ["-fsanitize=thread"],
}
# What all kinds have, in the order of these columns.
TIMES = ("gpu_cupti_begin_ns", "gpu_cupti_end_ns")
GRAPH = ("graph_id", "graph_node_id", "correlation_id", "stream_id")


def toolchain():
    """Return what the headers are found by, or skip: nothing is installed here."""
    found = subprocess.run(
        [sys.executable, ROOT / "scripts/cuda_toolchain.py"],
        capture_output=True,
        text=True,
        check=False,
    )
    if found.returncode or shutil.which("g++") is None:
        pytest.skip(found.stderr or "g++ is not installed")
    return dict(word.split("=", 1) for word in found.stdout.split())


@pytest.fixture(scope="module", params=SANITIZERS)
def built(request, tmp_path_factory):
    """Build observer, stand-in and host program with one of the compiler's sanitizers."""
    paths = toolchain()
    build = tmp_path_factory.mktemp(request.param)
    flags = ["-g", *SANITIZERS[request.param]]
    make = ["make", "-s", "-C", ROOT / "injector/cupti", f"BUILD={build}", "RUNTIME="]
    make += [f"{name}={paths[name]}" for name in ("CUDA_INCLUDE", "CUPTI_INCLUDE")]
    both = " ".join(flags)
    environment = os.environ | {"CXXFLAGS": both, "LDFLAGS": both}
    subprocess.run(make, check=True, env=environment)
    includes = ["-isystem", paths["CUDA_INCLUDE"], "-isystem", paths["CUPTI_INCLUDE"]]
    compiler = ["g++", "-std=c++17", "-Wall", "-Wextra", "-Werror", *flags, *includes]
    shared = [*compiler, "-shared", "-fPIC", NATIVE / "fake_cupti.cpp"]
    subprocess.run([*shared, "-o", build / "libcupti.so"], check=True)
    host = [*compiler, NATIVE / "cupti_host.cpp", "-o", build / "host", "-ldl", "-lpthread"]
    subprocess.run(host, check=True)
    return build


class Played:
    """A run directory that a case of the host program wrote into."""

    def __init__(self, built, directory, case, recording=None, **environment):
        self.run_dir = RunDir(directory)
        self.run_dir.raw.mkdir(parents=True)
        recording = recording or RecordingConfig(observer=Observer.CUPTI, activity_flush_ms=50)
        write_activity_config(
            self.run_dir.injector_config,
            recording,
            raw_dir=self.run_dir.raw,
            cupti_library=built / "libcupti.so",
        )
        config = {"KVTRACE_CONFIG": str(self.run_dir.injector_config)}
        # What the observer keeps is leaked on purpose: CUPTI calls back while the process exits.
        config |= {"ASAN_OPTIONS": "detect_leaks=0"}
        command = [built / "host", built / "libkvtrace_cupti.so", built / "libcupti.so", case]
        self.done = subprocess.run(
            command, env=config | environment, capture_output=True, text=True, check=False
        )

    @property
    def activities(self):
        return read_run_activities(self.run_dir)

    def journal(self, event):
        return [line for line in read_journal(self.run_dir) if line["event"] == event]


def kind(name):
    return abi.constant(f"KVTRACE_ACTIVITY_{name}")


@pytest.mark.parametrize("case", ["exit", "asked", "fork"])
def test_every_activity_is_recorded_as_it_was_played(built, tmp_path, case):
    played = Played(built, tmp_path, case)
    assert played.done.returncode == 0, played.done.stderr
    (activity,) = played.activities
    header, records = activity.dump.header, activity.dump.records
    assert header.has("KVTRACE_FILE_CLOSED")
    assert (header.record_count, header.dropped_count, header.first_failure_site) == (17, 0, 0)
    assert activity.names == (TARGET, "_ZN7cutlass6gemm_kEv")
    plain, *_, peer = records.iter_rows(named=True)
    assert [plain[name] for name in (*TIMES, *GRAPH)] == [100, 200, 0, 0, 1, 7]
    assert (plain["grid_dim_x"], plain["grid_dim_y"], plain["grid_dim_z"]) == (16, 2, 1)
    assert (plain["block_dim_x"], plain["grid_id"], plain["context_id"]) == (128, 7, 1)
    assert (peer["activity_kind"], peer["byte_count"]) == (kind("COPY"), 1 << 20)
    replay = [row for row in records.iter_rows(named=True) if row["correlation_id"] == 11]
    assert [[row[name] for name in (*TIMES, *GRAPH)] for row in replay] == [
        [2000, 2100, 5, 51, 11, 7],
        [2050, 2300, 5, 52, 11, 8],
        [2300, 2320, 5, 53, 11, 7],
        [2400, 2500, 5, 54, 11, 7],
    ]
    kinds = [row["activity_kind"] for row in replay]
    assert kinds == [kind("KERNEL"), kind("KERNEL"), kind("MEMSET"), kind("KERNEL")]
    no_name = abi.constant("KVTRACE_ACTIVITY_NO_NAME")
    assert [row["name_id"] for row in replay] == [0, 1, no_name, 0]
    assert [line["observer"] for line in played.journal("attached")] == ["cupti"]
    (ended,) = played.journal("ended")
    assert ended["reason"] == ("asked" if case == "asked" else "exit")
    assert ended["activities_written"] == 17


def test_threads_that_launch_at_once_lose_nothing(built, tmp_path):
    (activity,) = Played(built, tmp_path, "threads").activities
    records = activity.dump.records
    assert (records.height, activity.dump.header.dropped_count) == (20_000, 0)
    for number in range(4):
        own = records.filter(records["stream_id"] == number)
        assert own["correlation_id"].to_list() == list(range(5000))
        assert {activity.names[line] for line in own["name_id"]} == {f"kernel_of_thread_{number}"}


def test_what_finds_no_buffer_is_counted(built, tmp_path):
    recording = RecordingConfig(
        observer=Observer.CUPTI, activity_buffers=1, activity_buffer_bytes=4096
    )
    (activity,) = Played(built, tmp_path, "threads", recording).activities
    header = activity.dump.header
    assert header.dropped_count > 0
    assert header.record_count + header.dropped_count == 20_000


def test_what_was_flushed_survives_a_kill(built, tmp_path):
    played = Played(built, tmp_path, "killed")
    assert played.done.returncode == -signal.SIGKILL
    (activity,) = played.activities
    assert activity.dump.records.height == 17
    assert not activity.dump.header.has("KVTRACE_FILE_CLOSED")


def test_a_record_that_cannot_be_read_is_a_failure_in_the_header(built, tmp_path):
    played = Played(built, tmp_path, "unfinished")
    (activity,) = played.activities
    assert activity.dump.records.height == 17
    site = abi.constant("KVTRACE_SITE_READ_ACTIVITY")
    assert activity.dump.header.first_failure_site == site
    assert [line["site"] for line in played.journal("failure")] == [site]


def test_a_process_that_runs_nothing_leaves_no_file(built, tmp_path):
    played = Played(built, tmp_path, "nothing")
    assert played.done.returncode == 0, played.done.stderr
    assert [path.name for path in played.run_dir.raw.iterdir()] == ["kvtrace.config"]


@pytest.mark.parametrize(
    ("environment", "site", "text"),
    [
        ({"KVTRACE_FAKE_CUPTI_VERSION": "130900"}, "LOAD_CUPTI", "CUPTI version 130900"),
        ({"KVTRACE_FAKE_CUPTI_REFUSES": "1"}, "ENABLE_ACTIVITY", "cuptiActivityEnable: result 35"),
    ],
)
def test_what_cannot_be_recorded_is_said_and_harms_nobody(built, tmp_path, environment, site, text):
    played = Played(built, tmp_path, "exit", **environment)
    assert played.done.returncode == 0
    assert f"kvtrace: not recording: {text}" in played.done.stderr
    assert played.activities == ()
    (failure,) = played.journal("failure")
    assert failure["site"] == abi.constant(f"KVTRACE_SITE_{site}")
    assert text in failure["detail"]


def test_a_config_of_the_other_observer_is_refused(built, tmp_path):
    played = Played(built, tmp_path, "nothing")
    played.run_dir.injector_config.write_bytes(bytes(5000))
    command = [built / "host", built / "libkvtrace_cupti.so", built / "libcupti.so", "exit"]
    environment = {
        "KVTRACE_CONFIG": str(played.run_dir.injector_config),
        "ASAN_OPTIONS": "detect_leaks=0",
    }
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert "not a config of kvtrace's CUPTI observer" in done.stderr


def test_the_library_carries_a_stamp_that_the_launcher_reads(built):
    found = find_injector(built / "libkvtrace_cupti.so")
    assert found.abi_version == abi.constant("KVTRACE_ABI_VERSION")
    assert found.build.startswith("kvtrace-cupti abi=")
    assert " cupti=13" in found.build


def kvtrace(directory, *arguments):
    """Run kvtrace on a machine whose nvidia-smi is a stand-in."""
    _, environment = make_machine(directory)
    command = [sys.executable, "-m", "kvtrace_cli", *map(str, arguments)]
    return subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )


def blocks_of_the_same(run, manifest):
    """Write what the Sanitizer would have recorded of the host program's case `exit`."""
    trace = Trace()
    trace.enter_all(trace.plain((16, 2, 1)))
    for launch_id in range(1, 4):
        for node in range(2):
            trace.enter_all(trace.node(node, launch_id, (1, 2, 1)))
    return write_run(run, trace, requests=[], manifest=manifest | {"observer": "sanitizer"})


def test_from_the_command_line_to_the_gap(built, tmp_path):
    if not built.name.startswith("plain"):
        pytest.skip("once is enough, and a sanitized library needs a sanitized program")
    run = tmp_path / "run"
    libraries = ["--injector", built / "libkvtrace_cupti.so"]
    libraries += ["--cupti-library", built / "libcupti.so"]
    host = [built / "host", built / "libkvtrace_cupti.so", built / "libcupti.so", "exit"]
    options = ["--observer", "cupti", "--no-steps", "--out", run, *libraries]
    done = kvtrace(tmp_path, "exec", *options, "--", *host)
    assert done.returncode == ExitCode.INCONCLUSIVE, done.stderr
    assert "recorded 17 activity records, 0 dropped" in done.stderr
    assert f"kvtrace gap DIR_SANITIZER {run}" in done.stderr
    said = " ".join(done.stdout.split())
    assert "target kernels ran 6 times in graphs and 1 times as plain launches" in said
    manifest = json.loads((run / "manifest.json").read_text())
    assert (manifest["observer"], manifest["outcome"]["activities"]) == ("cupti", 17)
    assert manifest["sanitizer_library"] is None
    assert manifest["cupti_library"] == str(built / "libcupti.so")
    blocks = blocks_of_the_same(tmp_path / "blocks", manifest)
    command = [sys.executable, "-m", "kvtrace_cli", "gap", "--json", blocks, run]
    split = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert split.returncode == 0, split.stdout + split.stderr
    (graph,) = json.loads(split.stdout)["graphs"]
    assert (graph["nodes"], graph["replays"]) == (2, 3)
    shares = {part["name"]: part["share_ms"] * 1e6 for part in graph["between"]["parts"]}
    assert shares == pytest.approx({"copies": 10, "idle": 490})
