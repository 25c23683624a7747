"""Text files of a run directory: JSON documents and files of one JSON object a line."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from kvtrace_cli.dumps.packed import opened
from kvtrace_cli.errors import RunDirError

_SURROGATE: Final = re.compile(r"\\u[dD][89a-fA-F]")


def numbered_objects(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (line number, object) of each line that is not empty.

    A writer that was killed leaves a last line without its newline: read if it is whole, left out
    if it is torn.

    Raises:
        RunDirError: the file cannot be read, or another line is no JSON object.
        DumpFormatError: the file is packed and damaged.
    """
    *whole, last = text_of(path).split("\n")
    lines = [(number, line) for number, line in enumerate(whole, start=1) if line.strip()]
    if last and _is_json(last):
        lines.append((len(whole) + 1, last))
    for number, line in lines:
        value = parsed(path, line, number)
        if not isinstance(value, dict):
            raise RunDirError(
                f"{path}: line {number} is a JSON {type(value).__name__}, expected an object; "
                "the file is damaged, record again"
            )
        yield number, value


def text_of(path: Path) -> str:
    """Return a file's text, unpacked if its name ends in .gz.

    Raises:
        RunDirError: it cannot be read.
        DumpFormatError: it is packed and damaged.
    """
    try:
        with opened(path) as file:
            return file.read().decode("utf-8", errors="replace")
    except OSError as error:
        raise RunDirError(
            f"{path}: cannot be read ({error.strerror}); a run directory has this file, "
            "copy the directory again or record again"
        ) from error


def parsed(path: Path, text: str, line: int = 1) -> Any:
    """Return the value of a JSON text that begins in the given line of a file.

    Raises:
        RunDirError: it is no JSON, or has a text that no file and no terminal can take.
    """
    try:
        value = json.loads(text)
        if _SURROGATE.search(text):
            # Two of them that stand for one character are that character by now.
            json.dumps(value, ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        raise RunDirError(
            f"{path}: no JSON in line {line + error.lineno - 1} ({error.msg}); "
            "the file is damaged, copy it again or record again"
        ) from error
    except (ValueError, RecursionError) as error:
        raise RunDirError(
            f"{path}: no JSON that can be read in line {line} ({error}); "
            "the file is damaged, copy it again or record again"
        ) from error
    return value


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True
