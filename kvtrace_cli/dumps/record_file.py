"""The records of one dump file, kept open so that any part can be read, again and from any thread.

They are read, not mapped: pages of a map count as the process's own memory, and a file that is cut
short meanwhile would end it by a signal.
"""

import gzip
import os
import shutil
import tempfile
import weakref
from pathlib import Path
from typing import IO, Final

import numpy as np

from kvtrace_cli.dumps import abi
from kvtrace_cli.dumps.event_source import U8, Records
from kvtrace_cli.dumps.packed import PACKED, opened
from kvtrace_cli.dumps.schema import record_dtype
from kvtrace_cli.errors import DumpFormatError

_UNPACKED_AT_ONCE: Final = 1 << 20


class RecordFile:
    """An opened `*.kvt` or `*.kva` file; one whose name ends in .gz is unpacked to a nameless one.

    It is closed when nobody refers to it any more.
    """

    def __init__(self, path: Path) -> None:
        """Open the file.

        Raises:
            DumpFormatError: it cannot be read, or is packed and damaged.
        """
        self.path = path
        self._descriptor = _opened(path)
        weakref.finalize(self, os.close, self._descriptor)
        self.size = os.fstat(self._descriptor).st_size

    def head(self, count: int) -> bytes:
        """Return the first bytes, as many as there are."""
        data = np.empty(count, np.uint8)
        return data[: self._fill(data, 0)].tobytes()

    def records(self, struct: str, first: int, count: int, of: int) -> Records:
        """Return `count` records from the one at position `first` on.

        Args:
            struct: of the ABI; says how long a record is.
            first: position of the first one to return.
            count: how many to return.
            of: as many as the header counts.

        Raises:
            DumpFormatError: the file holds fewer, or cannot be read.
        """
        records = np.empty(count, record_dtype(struct))
        size = abi.size_of(struct)
        found = self._fill(records.view(np.uint8), abi.size_of(abi.HEADER_STRUCT) + first * size)
        if found < count * size:
            raise self._cut_short(of, first + found // size)
        return records

    def require(self, struct: str, count: int) -> None:
        """Raise DumpFormatError if the file is too short for so many records."""
        # A writer that lives may have grown the file before it counted them.
        size = os.fstat(self._descriptor).st_size
        held = max(size - abi.size_of(abi.HEADER_STRUCT), 0) // abi.size_of(struct)
        if held < count:
            raise self._cut_short(count, held)

    def _cut_short(self, counted: int, held: int) -> DumpFormatError:
        return DumpFormatError(
            f"{self.path}: the header counts {counted} records, the file holds {held}; it was cut "
            "short, copy it again or record again"
        )

    def _fill(self, data: U8, offset: int) -> int:
        """Read into all of `data` and return how many bytes there were."""
        view, filled = data.data, 0
        try:
            while filled < len(view):
                read = os.preadv(self._descriptor, [view[filled:]], offset + filled)
                if not read:
                    break
                filled += read
        except OSError as error:
            raise _unreadable(self.path, error) from error
        return filled


def _opened(path: Path) -> int:
    try:
        with opened(path) as file:
            return _unpacked(path, file) if path.suffix == PACKED else os.dup(file.fileno())
    except OSError as error:
        raise _unreadable(path, error) from error


def _unpacked(path: Path, packed: IO[bytes]) -> int:
    """Unpack into a file without a name, which is gone when it is closed."""
    try:
        with tempfile.TemporaryFile() as unpacked:
            shutil.copyfileobj(packed, unpacked, _UNPACKED_AT_ONCE)
            unpacked.flush()
            return os.dup(unpacked.fileno())
    except gzip.BadGzipFile:
        raise  # an OSError too, which `opened` tells
    except OSError as error:
        raise DumpFormatError(
            f"{path}: cannot be unpacked into {tempfile.gettempdir()} ({error.strerror}); make "
            "room there, or set TMPDIR to another directory"
        ) from error


def _unreadable(path: Path, error: OSError) -> DumpFormatError:
    return DumpFormatError(
        f"{path}: cannot be read ({error.strerror}); check the path and its permissions"
    )
