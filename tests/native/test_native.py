"""Build and run the C++ tests: plainly, and under the address and thread sanitizers."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# What can be built without CUDA's headers.
PARTS = (
    "config",
    "event_ring",
    "handle_table",
    "journal",
    "kernel_names",
    "launch_ring",
    "record_file",
    "recording_switch",
    "step_stamp",
)
SANITIZERS = {
    "plain": [],
    "address": ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"],
    "thread": ["-fsanitize=thread"],
}


@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")
@pytest.mark.parametrize("sanitizer", SANITIZERS)
def test_native_parts(sanitizer: str, tmp_path: Path) -> None:
    program = tmp_path / "native_tests"
    sources = [ROOT / "injector" / "src" / f"{part}.cpp" for part in PARTS]
    includes = [f"-I{ROOT / 'injector' / folder}" for folder in ("include", "src")]
    flags = ["-std=c++17", "-O1", "-g", "-Wall", "-Wextra", "-Werror", *SANITIZERS[sanitizer]]
    build = ["g++", *flags, *includes, "-o", program, ROOT / "tests/native/native_tests.cpp"]
    subprocess.run([*build, *sources, "-lpthread"], check=True)
    files = tmp_path / "files"
    files.mkdir()
    # The injector's state is leaked on purpose: the driver calls back while the process exits.
    done = subprocess.run(
        [program, files],
        env={"ASAN_OPTIONS": "detect_leaks=0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [json.loads(line) for line in (files / "journal.jsonl").read_text().splitlines()]
    assert [line["event"] for line in lines] == ["test", "cut", "cut"]
    assert lines[0]["number"] == 1 << 63
    assert lines[0]["text"] == 'a"b\\c?d?'
    assert lines[1]["after"] == 1
