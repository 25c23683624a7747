"""One dump file (`*.kvt` or `*.kvt.gz`) -> validated header and its records."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from kvtrace_cli.dumps import abi
from kvtrace_cli.dumps.event_pieces import CheckedEvents
from kvtrace_cli.dumps.event_source import EventDump
from kvtrace_cli.dumps.record_columns import read_frame
from kvtrace_cli.dumps.record_file import RecordFile
from kvtrace_cli.dumps.schema import Dump, FileHeader
from kvtrace_cli.errors import DumpFormatError


@dataclass(frozen=True)
class _Kind:
    """What a kind of dump file must hold."""

    label: str
    struct: str
    magic: int


def read_events(path: Path) -> EventDump:
    """Open a file of block events and check all of them.

    Returns:
        EventDump; the events themselves stay in the file and are read when asked for.

    Raises:
        DumpFormatError: the file is no event file, is damaged, or is of another ABI version.

    Units: `gpu_globaltimer_ns` in ns of %globaltimer. Source: dump ABI v1, kvtrace_block_event.
    """
    kind = _Kind("block event", abi.EVENTS_STRUCT, abi.constant("KVTRACE_EVENTS_MAGIC"))
    file, header = _opened(path, kind)
    events = CheckedEvents(file, header)
    _check_end(file, header, kind)
    return EventDump(path.name, header, events)


def read_launches(path: Path) -> Dump:
    """Read a file of launch records.

    Returns:
        Dump whose frame has one row per launch in publish order, columns of the ABI structure.

    Raises:
        DumpFormatError: the file is no launch file, is damaged, or is of another ABI version.

    Units: `host_monotonic_ns` in ns of CLOCK_MONOTONIC. Source: dump ABI v1,
    kvtrace_launch_record.
    """
    kind = _Kind("launch record", abi.LAUNCHES_STRUCT, abi.constant("KVTRACE_LAUNCHES_MAGIC"))
    return _read(path, kind)


def read_activities(path: Path) -> Dump:
    """Read a file of activity records.

    Returns:
        Dump whose frame has one row per kernel, copy or memset, in the order in which CUPTI gave
        them out, columns of the ABI structure.

    Raises:
        DumpFormatError: the file is no activity file, is damaged, or is of another ABI version.

    Units: `gpu_cupti_*_ns` in ns of CUPTI's clock. Source: kvtrace_activity_record.
    """
    magic = abi.constant("KVTRACE_ACTIVITIES_MAGIC")
    return _read(path, _Kind("activity record", abi.ACTIVITIES_STRUCT, magic))


def _read(path: Path, kind: _Kind) -> Dump:
    file, header = _opened(path, kind)
    frame = read_frame(file, kind.struct, header.record_count)
    _check_end(file, header, kind)
    return Dump(path.name, header, frame)


def _opened(path: Path, kind: _Kind) -> tuple[RecordFile, FileHeader]:
    file = RecordFile(path)
    return file, _header(path, file.head(abi.size_of(abi.HEADER_STRUCT)), kind)


def _header(path: Path, data: bytes, kind: _Kind) -> FileHeader:
    header_size = abi.size_of(abi.HEADER_STRUCT)
    if len(data) < header_size:
        raise DumpFormatError(
            f"{path}: {len(data)} bytes, shorter than the {header_size} bytes of a header; "
            "copy it again or record again"
        )
    raw = abi.ffi().from_buffer(f"{abi.HEADER_STRUCT} *", data)
    if raw.magic != kind.magic:
        raise DumpFormatError(
            f"{path}: starts with {data[:8]!r}, a {kind.label} file starts with "
            f"{kind.magic.to_bytes(8, 'little')!r}; it is no such file or is damaged"
        )
    version = abi.constant("KVTRACE_ABI_VERSION")
    if raw.abi_version != version:
        raise DumpFormatError(
            f"{path}: ABI version {raw.abi_version}, this kvtrace reads {version}; "
            "install the kvtrace that recorded it or record again"
        )
    if raw.record_size != abi.size_of(kind.struct):
        raise DumpFormatError(
            f"{path}: records of {raw.record_size} bytes, a {kind.label} has "
            f"{abi.size_of(kind.struct)}; the header is damaged, record again"
        )
    return FileHeader(
        **{field.name: getattr(raw, field.name) for field in dataclasses.fields(FileHeader)}
    )


def _check_end(file: RecordFile, header: FileHeader, kind: _Kind) -> None:
    end = abi.size_of(abi.HEADER_STRUCT) + header.record_count * abi.size_of(kind.struct)
    trailing = file.size - end
    if header.has("KVTRACE_FILE_CLOSED") and trailing > 0:
        raise DumpFormatError(
            f"{file.path}: {trailing} bytes after the last of {header.record_count} records; a "
            "file closed in order ends with its last record; copy it again or record again"
        )
