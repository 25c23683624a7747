"""The README must not promise what is not there."""

import inspect
import re
from importlib import import_module
from pathlib import Path

import pytest

from kvtrace_cli.app import COMMANDS
from kvtrace_cli.errors import ExitCode

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
CI = (ROOT / "docs/ci.md").read_text(encoding="utf-8")
# Every command can end so; their help does not repeat it.
ALWAYS = {ExitCode.USAGE, ExitCode.BUG, ExitCode.INTERRUPTED}
RECORDING = {"run", "exec"}


def exit_codes():
    """Return {code: {command: what it means there}} as README's table has it."""
    found = {}
    for code, cell in re.findall(r"^\| (\d+) \|.*\| ([^|]+) \|$", README, flags=re.MULTILINE):
        meanings = dict.fromkeys(COMMANDS, "") if cell == "all" else {}
        for part in cell.split("; ") if cell != "all" else ():
            names, meaning = part.split(": ", 1)
            meanings |= dict.fromkeys(re.findall(r"`(\w+)`", names), meaning)
        found[ExitCode(int(code))] = meanings
    return found


def command_module(name):
    return import_module(f"kvtrace_cli.commands.{name}")


def test_every_command_is_in_the_readme():
    documented = set(re.findall(r"^\| `kvtrace (\w+)", README, flags=re.MULTILINE))
    assert documented == set(COMMANDS)


def test_every_exit_code_is_in_the_readme():
    documented = exit_codes()
    assert set(documented) == set(ExitCode)
    assert all(meanings.keys() <= set(COMMANDS) for meanings in documented.values())


@pytest.mark.parametrize("name", sorted(set(COMMANDS) - RECORDING))
def test_the_exit_codes_of_a_command_are_those_of_its_help(name):
    told = inspect.getdoc(getattr(command_module(name), name)).partition("Exit code ")[2]
    in_help = {ExitCode(int(code)) for code in re.findall(r"\b(\d+): ", told)}
    in_readme = {code for code, meanings in exit_codes().items() if name in meanings}
    assert in_readme == in_help | ALWAYS


@pytest.mark.parametrize("name", ["reconcile", "audit", "diff"])
def test_each_verdict_has_the_exit_code_of_the_readme(name):
    documented = exit_codes()
    codes = command_module(name)._EXIT_CODES
    assert set(codes) == set(type(next(iter(codes))))
    for verdict, code in codes.items():
        assert documented[code][name].startswith(verdict.value)


@pytest.mark.parametrize("name", sorted(RECORDING))
def test_what_records_ends_as_reconcile_does_or_says_that_the_run_failed(name):
    codes = exit_codes()
    in_readme = {code for code, meanings in codes.items() if name in meanings}
    of_reconcile = {code for code, meanings in codes.items() if "reconcile" in meanings}
    assert in_readme == of_reconcile | {ExitCode.RUN_FAILED}


@pytest.mark.parametrize("path", sorted(ROOT.glob("*.md")) + sorted(ROOT.glob("docs/*.md")))
def test_linked_files_exist(path):
    for target in re.findall(r"\]\((?!https:)([^)#]+)\)", path.read_text(encoding="utf-8")):
        assert (path.parent / target).is_file(), target


def test_every_input_of_the_action_is_documented():
    action = (ROOT / "action.yml").read_text(encoding="utf-8")
    inputs = re.findall(r"^  ([\w-]+):$", action.partition("\nruns:")[0], flags=re.MULTILINE)
    documented = re.findall(r"^\| ((?:`[a-z][\w-]+`(?:, )?)+) \| ", CI, flags=re.MULTILINE)
    assert inputs == [name for cell in documented for name in re.findall("`([^`]+)`", cell)]
