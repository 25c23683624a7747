"""What can be told of a program of the user's before it is started."""

import re
import shlex
import shutil
from pathlib import Path
from typing import Final

_PYTHON: Final = re.compile(r"python[\d.]*")
_FIRST_LINE_BYTES: Final = 512


def find_program(name: str) -> Path | None:
    """Return the file that the shell would start under this name; null if there is none."""
    found = shutil.which(name)
    return None if found is None else Path(found)


def interpreter_of(program: Path) -> Path | None:
    """Return the Python that runs a program: itself, or the one that its first line names.

    Null for a program that is not run by Python, or a file that cannot be read.
    """
    if _PYTHON.fullmatch(program.name):
        return program
    words = _first_line_words(program)
    if words and Path(words[0]).name == "env":
        words = [word for word in words[1:] if not word.startswith("-")]
    if not words or not _PYTHON.fullmatch(Path(words[0]).name):
        return None
    return find_program(words[0])


def _first_line_words(program: Path) -> list[str]:
    """Return what follows `#!`, word by word."""
    try:
        with program.open("rb") as file:
            line = file.read(_FIRST_LINE_BYTES).partition(b"\n")[0]
    except OSError:
        return []
    if not line.startswith(b"#!"):
        return []
    try:
        return shlex.split(line[2:].decode(errors="replace"))
    except ValueError:
        return []
