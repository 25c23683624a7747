"""Copy the raw files of a process, under another number if its own is taken."""

import gzip
import json
import re
import zlib
from collections import defaultdict
from pathlib import Path
from shutil import copyfileobj
from typing import IO, Final, cast

from kvtrace_cli.dumps import abi
from kvtrace_cli.errors import DumpFormatError, RunDirError

_NAME: Final = re.compile(r"(?P<pid>[1-9]\d{0,8})[-.].+")
_DUMPS: Final = (".kvt", ".kva")
_JOURNAL: Final = ".journal.jsonl"
_PACKED: Final = ".gz"


def raw_files(raw_dir: Path) -> dict[int, list[Path]]:
    """Return the files of each process, by its number."""
    found: dict[int, list[Path]] = defaultdict(list)
    for path in sorted(raw_dir.iterdir()):
        match = _NAME.fullmatch(path.name)
        if match is not None:
            found[int(match["pid"])].append(path)
    return dict(found)


def copy_process(files: list[Path], target_dir: Path, old: int, new: int) -> None:
    """Copy the files of process `old`, unpacked; those that hold its number get the `new` one.

    Raises:
        DumpFormatError: a dump is not of the process that its name says.
        RunDirError: a packed file is damaged.
    """
    for path in files:
        name = path.name.removesuffix(_PACKED).removeprefix(str(old))
        target = target_dir / f"{new}{name}"
        if name == _JOURNAL:
            _copy_journal(path, target, old, new)
            continue
        _copy(path, target)
        if name.endswith(_DUMPS):
            _renumber_dump(path, target, old, new)


def _copy(source: Path, target: Path) -> None:
    try:
        with _opened(source) as packed, target.open("xb") as file:
            copyfileobj(packed, file)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise RunDirError(
            f"{source}: not a whole gzip file ({error}); compress it again or copy it again"
        ) from error


def _renumber_dump(source: Path, target: Path, old: int, new: int) -> None:
    """Write the new number into the header of a copy."""
    place = next(one for one in abi.fields(abi.HEADER_STRUCT) if one.name == "process_id")
    with target.open("r+b") as file:
        file.seek(place.offset)
        found = int.from_bytes(file.read(place.size), "little")
        if found != old:
            raise DumpFormatError(
                f"{source}: its header says process {found}, expected {old} as its name does; the "
                "file is damaged or was renamed"
            )
        file.seek(place.offset)
        file.write(new.to_bytes(place.size, "little"))


def _opened(path: Path) -> IO[bytes]:
    return cast("IO[bytes]", gzip.open(path)) if path.suffix == _PACKED else path.open("rb")


def _copy_journal(source: Path, target: Path, old: int, new: int) -> None:
    """Copy a journal line by line; one that is torn stays as it is."""
    with source.open("rb") as lines, target.open("xb") as file:
        for line in lines:
            file.write(_renumbered(line, old, new))


def _renumbered(line: bytes, old: int, new: int) -> bytes:
    try:
        value = json.loads(line)
    except ValueError:
        return line
    if not isinstance(value, dict) or value.get("process_id") != old:
        return line
    return json.dumps(value | {"process_id": new}).encode() + b"\n"
