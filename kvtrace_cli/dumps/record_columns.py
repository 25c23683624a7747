"""All records of one file as a frame; columns with one value throughout hold it once."""

from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from kvtrace_cli.dumps.event_source import Records
from kvtrace_cli.dumps.record_file import RecordFile
from kvtrace_cli.dumps.schema import record_dtype, record_schema

PIECE_RECORDS: Final = 1 << 14


def read_frame(file: RecordFile, struct: str, count: int) -> pl.DataFrame:
    """Read records into one row each, columns of the ABI structure.

    Raises:
        DumpFormatError: the file holds fewer, or cannot be read.
    """
    file.require(struct, count)
    columns = [_Column(count) for _ in record_schema(struct)]
    for first in range(0, count, PIECE_RECORDS):
        records = file.records(struct, first, min(PIECE_RECORDS, count - first), count)
        for name, column in zip(record_dtype(struct).names or (), columns, strict=True):
            column.fill(first, records[name])
    # The first one gives the frame its height, whatever its values are.
    series: list[pl.Series] = []
    constants: list[pl.Expr] = []
    for (name, dtype), column in zip(record_schema(struct).items(), columns, strict=True):
        if series and column.values is None and count:
            constants.append(pl.lit(int(column.value), dtype).alias(name))
        else:
            series.append(pl.Series(name, column.take(), dtype))
    return pl.DataFrame(series).with_columns(constants).select(*record_schema(struct))


class _Column:
    """The values of one field, or their one value as long as there is no other."""

    def __init__(self, height: int) -> None:
        self._height = height
        self.value: np.unsignedinteger = np.uint8(0)
        self.values: npt.NDArray[np.unsignedinteger] | None = None

    def fill(self, first: int, values: Records) -> None:
        """Take in the values from the row `first` on, which follow those already taken in."""
        if first == 0:
            self.value = values[0]
        if self.values is None:
            if (values == self.value).all():
                return
            self.values = np.empty(self._height, values.dtype)
            self.values[:first] = self.value
        self.values[first : first + len(values)] = values

    def take(self) -> npt.NDArray[np.unsignedinteger]:
        """Return all values and forget them."""
        values, self.values = self.values, None
        return np.full(self._height, self.value) if values is None else values
