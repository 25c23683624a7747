"""Copy the raw files of a process, under another number if its own is taken."""

import json
import re
from collections import defaultdict
from pathlib import Path
from shutil import copyfileobj
from typing import Final

from kvtrace_cli.dumps import abi
from kvtrace_cli.dumps.packed import PACKED, opened
from kvtrace_cli.errors import DumpFormatError

_NAME: Final = re.compile(r"(?P<pid>[1-9]\d{0,8})[-.].+")
_DUMPS: Final = (".kvt", ".kva")
_JOURNAL: Final = ".journal.jsonl"


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
        DumpFormatError: a dump is not of the process that its name says, or a packed file is
            damaged.
    """
    for path in files:
        name = path.name.removesuffix(PACKED).removeprefix(str(old))
        target = target_dir / f"{new}{name}"
        if name == _JOURNAL:
            _copy_journal(path, target, old, new)
            continue
        _copy(path, target)
        if name.endswith(_DUMPS):
            _renumber_dump(path, target, old, new)


def _copy(source: Path, target: Path) -> None:
    with opened(source) as file, target.open("xb") as copy:
        copyfileobj(file, copy)


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
