"""The block events of one file, read a piece at a time, as often as somebody asks."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import polars as pl

from kvtrace_cli.dumps.in_order import in_order
from kvtrace_cli.dumps.schema import SEQUENCE, FileHeader, event_schema

Records = npt.NDArray[np.void]
U8 = npt.NDArray[np.uint8]
U16 = npt.NDArray[np.uint16]
U32 = npt.NDArray[np.uint32]
U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

_T = TypeVar("_T")


@dataclass(frozen=True)
class EventPiece:
    """Neighbouring events: their records, whose fields are the ABI's, and full sequences."""

    records: Records
    sequence: U64

    def __len__(self) -> int:
        return len(self.sequence)

    def column(self, name: str) -> npt.NDArray[np.unsignedinteger]:
        """Return one field of all records, in memory of its own."""
        return np.ascontiguousarray(self.records[name])

    def only(self, kept: Bools) -> "EventPiece":
        """Return those of the events that are kept."""
        # As plain words, which numpy copies ten times as fast as records.
        dtype = self.records.dtype
        words = self.records.view(np.uint64).reshape(len(self), dtype.itemsize // 8)
        kept_words = words.compress(kept, axis=0).reshape(-1)
        return EventPiece(kept_words.view(dtype), self.sequence[kept])

    def frame(self, names: tuple[str, ...] = ()) -> pl.DataFrame:
        """Return the columns of `event_schema()`, or those of them that are named."""
        return pl.DataFrame(
            [
                pl.Series(name, self.sequence if name == SEQUENCE else self.column(name), dtype)
                for name, dtype in event_schema().items()
                if name in names or not names
            ]
        )


class EventReader(Protocol):
    """Reads any part of the events of a file."""

    def read(self, first: int, count: int) -> EventPiece:
        """Return `count` events from the one at position `first` on, all of which are there.

        Raises:
            DumpFormatError: the file was changed since it was opened.
        """


@dataclass(frozen=True)
class EventDump:
    """One file of block events: its name without directory, its header, and its events' reader."""

    name: str
    header: FileHeader
    reader: EventReader

    def __len__(self) -> int:
        return self.header.record_count

    def pieces(self, size: int) -> Iterator[EventPiece]:
        """Yield all events in order, `size` at a time.

        Raises:
            DumpFormatError: the file was changed since it was opened.
        """
        for first in range(0, len(self), size):
            yield self._piece(first, size)

    def mapped(self, work: Callable[[EventPiece], _T], size: int) -> Iterator[_T]:
        """Yield what `work` returns of the pieces, in order; threads do several at once.

        Raises:
            DumpFormatError: the file was changed since it was opened.
        """
        pieces = -(-len(self) // size)
        return in_order(lambda number: work(self._piece(number * size, size)), pieces)

    def _piece(self, first: int, size: int) -> EventPiece:
        return self.reader.read(first, min(size, len(self) - first))

    @property
    def records(self) -> pl.DataFrame:
        """All events in one frame, made when asked for: it is as large as the recording."""
        return self.reader.read(0, len(self)).frame()
