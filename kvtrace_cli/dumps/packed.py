"""Files of a run directory as they are, or packed with gzip: the name then ends in .gz."""

import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final, cast

from kvtrace_cli.errors import DumpFormatError

PACKED: Final = ".gz"


@contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """Open a file to be read once from its beginning; a packed one is unpacked on the way.

    Raises:
        DumpFormatError: reading found that a packed file is cut short, damaged or no gzip file.
        OSError: it cannot be opened or read.
    """
    if path.suffix != PACKED:
        with path.open("rb") as file:
            yield file
        return
    with gzip.open(path) as packed:
        try:
            yield cast("IO[bytes]", packed)
        except EOFError as error:
            raise DumpFormatError(
                f"{path}: a gzip file that was cut short, found {packed.tell()} bytes in it and no "
                "end, expected its end; copy it again or compress it again"
            ) from error
        except (gzip.BadGzipFile, zlib.error) as error:
            raise DumpFormatError(
                f"{path}: found no gzip file or a damaged one ({error}), expected a whole one as "
                f"its name ends in {PACKED}; copy it again or compress it again"
            ) from error
