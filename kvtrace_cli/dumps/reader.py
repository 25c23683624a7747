"""One dump file (`*.kvt` or `*.kvt.gz`) -> validated header and polars frame."""

import dataclasses
import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

import polars as pl

from kvtrace_cli.dumps import abi
from kvtrace_cli.dumps.event_pieces import EventCheck, put_together
from kvtrace_cli.dumps.schema import (
    Dump,
    FileHeader,
    record_schema,
)
from kvtrace_cli.errors import DumpFormatError

_WORD_BYTES = 8
# Records are turned into columns in pieces of this many, each piece on its own: so no more than
# one piece is in memory twice.
_PIECE_RECORDS = 65_536


@dataclass(frozen=True)
class _Kind:
    """What a kind of dump file must hold."""

    label: str
    struct: str
    magic: int


def read_events(path: Path) -> Dump:
    """Read a file of block events.

    Returns:
        Dump whose frame has one row per event in sequence order, columns `event_schema()`.

    Raises:
        DumpFormatError: the file is no event file, is damaged, or is of another ABI version.

    Units: `gpu_globaltimer_ns` in ns of %globaltimer. Source: dump ABI v1, kvtrace_block_event.
    """
    kind = _Kind("block event", abi.EVENTS_STRUCT, abi.constant("KVTRACE_EVENTS_MAGIC"))
    return _read(path, kind, EventCheck)


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
    return _read(path, kind, None)


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
    return _read(path, _Kind("activity record", abi.ACTIVITIES_STRUCT, magic), None)


def _read(path: Path, kind: _Kind, check: type[EventCheck] | None) -> Dump:
    with _opened(path) as stream:
        header = _read_header(path, stream, kind)
        pieces = _read_pieces(path, stream, header, kind.struct)
        if check is None:
            frame = pl.concat([pl.DataFrame(schema=record_schema(kind.struct)), *pieces])
        else:
            frame = put_together(map(check(path, header).check, pieces))
        closed = header.has("KVTRACE_FILE_CLOSED")
        if closed and (trailing := _count_rest(stream)):
            raise DumpFormatError(
                f"{path}: {trailing} bytes after the last of {header.record_count} records; a file "
                "closed in order ends with its last record; copy it again or record again"
            )
    return Dump(path.name, header, frame)


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    """Open a dump for reading, unpacked if its name ends in .gz."""
    try:
        with cast(
            "IO[bytes]", gzip.open(path) if path.suffix == ".gz" else path.open("rb")
        ) as stream:
            yield stream
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DumpFormatError(
            f"{path}: not a whole gzip file ({error}); compress it again or copy it again"
        ) from error
    except OSError as error:
        raise DumpFormatError(
            f"{path}: cannot be read ({error.strerror}); check the path and its permissions"
        ) from error


def _read_header(path: Path, stream: IO[bytes], kind: _Kind) -> FileHeader:
    header_size = abi.size_of(abi.HEADER_STRUCT)
    data = stream.read(header_size)
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


def _read_pieces(
    path: Path, stream: IO[bytes], header: FileHeader, struct: str
) -> Iterator[pl.DataFrame]:
    """Yield the counted records as columns, `_PIECE_RECORDS` at a time."""
    record_size = abi.size_of(struct)
    for first in range(0, header.record_count, _PIECE_RECORDS):
        wanted = min(header.record_count - first, _PIECE_RECORDS) * record_size
        piece = stream.read(wanted)
        if len(piece) < wanted:
            raise DumpFormatError(
                f"{path}: the header counts {header.record_count} records, the file holds "
                f"{first + len(piece) // record_size}; it was cut short, copy it again or record "
                "again"
            )
        yield _columns(piece, struct)


def _count_rest(stream: IO[bytes]) -> int:
    return sum(len(piece) for piece in iter(lambda: stream.read(1 << 20), b""))


def _columns(records: bytes, struct: str) -> pl.DataFrame:
    """Turn the bytes of records into columns.

    The bytes become one column of 64-bit words, of which every n-th belongs to one word of the
    records; natural alignment keeps each field inside one word.
    """
    words = (
        pl.Series([records], dtype=pl.Binary)
        .bin.reinterpret(dtype=pl.Array(pl.UInt64, len(records) // _WORD_BYTES))
        .explode()
    )
    stride = abi.size_of(struct) // _WORD_BYTES
    columns = pl.select(
        pl.lit(words).gather_every(stride, word).alias(f"word{word}") for word in range(stride)
    )
    return columns.select(
        _field_value(field).cast(dtype).alias(field.name)
        for field, dtype in zip(abi.fields(struct), record_schema(struct).values(), strict=True)
    )


def _field_value(field: abi.Field) -> pl.Expr:
    word, byte = divmod(field.offset, _WORD_BYTES)
    value = pl.col(f"word{word}")
    if byte:
        value = value // (1 << 8 * byte)
    if byte + field.size < _WORD_BYTES:
        value = value & ((1 << 8 * field.size) - 1)
    return value
