"""The README must not promise what is not there."""

import re
from pathlib import Path

from kvtrace_cli.app import COMMANDS
from kvtrace_cli.errors import ExitCode

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")


def test_every_command_is_in_the_readme():
    documented = set(re.findall(r"^\| `kvtrace (\w+)", README, flags=re.MULTILINE))
    assert documented == set(COMMANDS)


def test_every_exit_code_is_in_the_readme():
    documented = {int(code) for code in re.findall(r"^\| (\d+) \|", README, flags=re.MULTILINE)}
    assert documented == set(ExitCode)


def test_linked_files_exist():
    for target in re.findall(r"\]\(([^)]+)\)", README):
        assert (Path(__file__).parents[2] / target).is_file(), target
