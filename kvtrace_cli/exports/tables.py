"""The joined tables as Parquet or Arrow IPC files, in one directory a table."""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import polars as pl

from kvtrace_cli import __version__
from kvtrace_cli.analysis.export_columns import (
    EXPORT_SCHEMA_VERSION,
    TABLES,
    UNKNOWN_RANK,
    schema_of,
    type_name,
)
from kvtrace_cli.analysis.export_frames import ExportSource
from kvtrace_cli.dumps.schema import PROCESS_ID
from kvtrace_cli.exports.target import COLUMNS_FILE

# The one table whose rows are of no process.
_UNRANKED = "requests"


class TableFormat(Enum):
    """File formats; the value is the files' suffix."""

    PARQUET = "parquet"
    ARROW = "arrow"


@dataclass(frozen=True)
class WrittenTable:
    """A table that was written."""

    table: str
    rows: int
    files: int


def write_tables(
    directory: Path, source: ExportSource, table_format: TableFormat
) -> Iterator[WrittenTable]:
    """Write each table that was recorded, then `_columns.json`; yield each when it is written.

    A table is a directory of hive partitions `rank=<number>`, counted over all data-parallel
    engines, -1 for processes that did not tell theirs, with parts of bounded size; `requests` has
    no partitions.

    Args:
        directory: is made.
        source: what to write.
        table_format: of the files.

    Raises:
        OSError: it cannot be written.
    """
    directory.mkdir()
    written = []
    for table, recorded in source.tables_recorded().items():
        if recorded:
            written.append(_write_table(directory / table, table, source, table_format))
            yield written[-1]
    document = json.dumps(_description(source, table_format, written), indent=2)
    (directory / COLUMNS_FILE).write_text(document + "\n", encoding="utf-8")


def _write_table(
    directory: Path, table: str, source: ExportSource, table_format: TableFormat
) -> WrittenTable:
    rows = files = 0
    for frame in source.slices_of(table):
        _write_part(directory / _partition(table, frame, source), files, frame, table_format)
        rows += frame.height
        files += 1
    if not files:
        nothing = pl.DataFrame(schema=schema_of(TABLES[table]))
        _write_part(directory / _partition(table, nothing, source), 0, nothing, table_format)
        files = 1
    return WrittenTable(table, rows, files)


def _partition(table: str, frame: pl.DataFrame, source: ExportSource) -> str:
    if table == _UNRANKED:
        return ""
    rank = UNKNOWN_RANK if frame.is_empty() else source.ranks.get(frame[PROCESS_ID][0])
    return f"rank={UNKNOWN_RANK if rank is None else rank}"


def _write_part(
    directory: Path, number: int, frame: pl.DataFrame, table_format: TableFormat
) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"part-{number:05}.{table_format.value}"
    if table_format is TableFormat.PARQUET:
        frame.write_parquet(path)
    else:
        # Readers of older Arrow versions know no string views.
        frame.write_ipc(path, compression="zstd", compat_level=pl.CompatLevel.oldest())


def _description(
    source: ExportSource, table_format: TableFormat, written: list[WrittenTable]
) -> dict[str, Any]:
    """Return what `_columns.json` says."""
    result, recorded = source.result, source.tables_recorded()
    return {
        "schema_version": EXPORT_SCHEMA_VERSION,
        "kvtrace_version": __version__,
        "format": table_format.value,
        "emulated": result.emulated,
        "incomplete": result.incomplete,
        "verdict": result.verdict.value,
        "reasons": list(result.reasons),
        "processes": [
            {"process_id": process_id, "rank": source.ranks.get(process_id, UNKNOWN_RANK)}
            | {"name": source.result.ranks.names.get(process_id, "")}
            | {"ranks": _ranks_of(source, process_id)}
            for process_id in sorted({books.process_id for books in result.files})
        ],
        "not_recorded": [table for table, there in recorded.items() if not there],
        "tables": [
            asdict(one)
            | {
                "columns": [
                    {"name": name, "type": type_name(column)}
                    | {"unit": column.unit, "meaning": column.meaning}
                    for name, column in TABLES[one.table].items()
                ]
            }
            for one in written
        ],
    }


def _ranks_of(source: ExportSource, process_id: int) -> dict[str, int]:
    """Return every rank that the engine of a process told."""
    for process in source.recording.steps:
        if process.process_id == process_id:
            return (process.started or {}).get("ranks") or {}
    return {}
