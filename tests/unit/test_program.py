import sys
from pathlib import Path

import pytest

from kvtrace_cli.capture.program import find_program, interpreter_of


@pytest.fixture
def script(tmp_path):
    def write(first_line):
        path = tmp_path / "tool"
        path.write_bytes(first_line)
        return path

    return write


@pytest.mark.parametrize("name", ["python", "python3", "python3.11"])
def test_an_interpreter_runs_itself(name):
    assert interpreter_of(Path("/venv/bin") / name) == Path("/venv/bin") / name


def test_a_console_script_names_its_interpreter(script):
    python = Path(sys.executable)
    assert interpreter_of(script(f"#!{python}\nimport vllm".encode())) == python
    assert interpreter_of(script(b"#!/usr/bin/env -S python3 -u\n")) == find_program("python3")


@pytest.mark.parametrize(
    "content", [b"#!/bin/sh\n", b"#!/usr/bin/env\n", b"#!'unclosed\n", b"#!", b"\x7fELF", b""]
)
def test_other_programs_have_none(script, content):
    assert interpreter_of(script(content)) is None


def test_a_file_that_is_gone_has_none(tmp_path):
    assert interpreter_of(tmp_path / "gone") is None


def test_programs_are_found_as_a_shell_does(tmp_path, monkeypatch):
    tool = tmp_path / "tool"
    tool.write_text("#!/bin/sh\n")
    assert find_program(str(tool)) is None, "not executable"
    tool.chmod(0o755)
    assert find_program(str(tool)) == tool
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_program("tool") == tool
    assert find_program("other") is None
