"""Packed files are read as what was packed, and a damaged one says how it is damaged."""

import gzip
import random

import pytest

from kvtrace_cli.dumps.json_lines import text_of
from kvtrace_cli.dumps.packed import opened
from kvtrace_cli.dumps.record_file import RecordFile
from kvtrace_cli.errors import DumpFormatError

# Of no use to a compressor, so that a part of what is packed is as large a part of the content.
CONTENT = random.Random(1).randbytes(300_000)
WHOLE = gzip.compress(CONTENT, mtime=0)
HEADER_BYTES = 10


def read(path):
    with opened(path) as file:
        return file.read()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "4711-0.events.kvt.gz"


def turned(packed, place):
    """Return the bytes with one bit turned over."""
    changed = bytearray(packed)
    changed[place] ^= 1
    return bytes(changed)


def test_the_name_decides_whether_a_file_is_unpacked(path):
    path.write_bytes(WHOLE)
    assert read(path) == CONTENT
    plain = path.with_suffix("")
    plain.write_bytes(WHOLE)
    assert read(plain) == WHOLE


@pytest.mark.parametrize(
    ("kept", "held"), [(3, 0), (HEADER_BYTES + 5 + 40, 40), (-8, len(CONTENT))]
)
def test_one_that_was_cut_short_says_how_much_is_in_it(path, kept, held):
    path.write_bytes(WHOLE[:kept])
    expected = rf"{path}: a gzip file that was cut short, found {held} bytes in it and no end, "
    with pytest.raises(DumpFormatError, match=f"{expected}expected its end; copy it again"):
        read(path)


@pytest.mark.parametrize(
    ("damaged", "found"),
    [
        (b"KVTRACE no gzip", "Not a gzipped file"),
        (turned(WHOLE, -5), "CRC check failed"),
        (turned(WHOLE, HEADER_BYTES + 1), "Error -3 while decompressing"),
    ],
)
def test_one_that_is_damaged_says_what_was_found(path, damaged, found):
    path.write_bytes(damaged)
    expected = rf"{path}: found no gzip file or a damaged one \({found}.*\), expected a whole one"
    with pytest.raises(DumpFormatError, match=f"{expected}.*; copy it again"):
        read(path)


@pytest.mark.parametrize("use", [RecordFile, text_of])
@pytest.mark.parametrize(
    ("damaged", "said"), [(WHOLE[:-20], "was cut short"), (turned(WHOLE, -5), "CRC check failed")]
)
def test_whoever_reads_it_says_so(path, use, damaged, said):
    path.write_bytes(damaged)
    with pytest.raises(DumpFormatError, match=said):
        use(path)


def test_an_error_of_another_file_meanwhile_stays_what_it_is(path, tmp_path):
    path.write_bytes(WHOLE)
    with pytest.raises(FileNotFoundError), opened(path):
        (tmp_path / "none").read_bytes()
