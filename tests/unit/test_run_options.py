"""What the commands that record take alike, and refuse alike."""

import pytest

from kvtrace_cli.app import main
from kvtrace_cli.commands.run_options import numbers
from kvtrace_cli.errors import ExitCode


def test_numbers_are_told_apart_by_commas():
    assert numbers("--batch", "1, 8,64", such_as="1,2") == (1, 8, 64)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("run", "--capture-sizes", "1,x"), "--capture-sizes: found '1,x', expected numbers such"),
        (("run", "--capture-sizes", ""), "--capture-sizes: found '', expected numbers such"),
        (("overhead", "--batch", "1;8"), "--batch: found '1;8', expected numbers such as 1,8,64"),
    ],
)
def test_a_list_that_is_none_is_refused_with_an_example(arguments, message, capsys):
    assert main([*arguments, "--model", "Qwen3-14B"]) == ExitCode.USAGE
    assert message in capsys.readouterr().err
