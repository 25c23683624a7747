"""Any part of a dump is read when asked for, packed or not, from the file that was opened."""

import gzip
import tempfile

import builders
import pytest
from polars.testing import assert_frame_equal

from kvtrace_cli.dumps import abi, event_pieces
from kvtrace_cli.dumps.reader import read_events, read_launches
from kvtrace_cli.errors import DumpFormatError


def with_drops():
    trace = builders.Trace()
    for number in range(30):
        trace.enter_all(trace.plain((3, 1, 1)))
        trace.drop(number % 4 * 20_000)
    return trace


@pytest.mark.parametrize("make", [with_drops, builders.seven_replays])
@pytest.mark.parametrize("packed", [False, True])
def test_every_part_is_that_of_the_whole(make, packed, tmp_path, monkeypatch):
    monkeypatch.setattr(event_pieces, "PIECE_RECORDS", 16)
    path = tmp_path / ("4711-0.events.kvt" + ".gz" * packed)
    content = make().event_file()
    path.write_bytes(gzip.compress(content) if packed else content)
    dump = read_events(path)
    path.unlink()
    whole = dump.records
    for size in (1, 5, 16, 17, 64, len(dump)):
        first = 0
        for piece in dump.pieces(size):
            assert_frame_equal(piece.frame(), whole.slice(first, len(piece)))
            first += len(piece)
        assert first == len(dump) == whole.height


def test_only_wanted_columns_are_made(tmp_path):
    path = tmp_path / "4711-0.events.kvt"
    path.write_bytes(builders.seven_replays().event_file())
    (piece,) = read_events(path).pieces(1000)
    assert piece.frame(("sequence", "pc")).columns == ["pc", "sequence"]


def test_a_file_that_is_cut_short_after_it_was_opened_is_named(tmp_path):
    path = tmp_path / "4711-0.events.kvt"
    path.write_bytes(builders.seven_replays().event_file())
    dump = read_events(path)
    with path.open("r+b") as file:
        file.truncate(64 + 64 * 100)
    with pytest.raises(DumpFormatError, match="counts 280 records, the file holds 100; it was cut"):
        list(dump.pieces(1000))


def test_no_room_to_unpack_is_said(tmp_path, monkeypatch):
    path = tmp_path / "4711-0.events.kvt.gz"
    path.write_bytes(gzip.compress(builders.seven_replays().event_file()))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    with pytest.raises(DumpFormatError, match=r"cannot be unpacked into .*none .*set TMPDIR"):
        read_events(path)


def test_a_column_that_varies_late_comes_back(tmp_path):
    trace = builders.Trace()
    launches = [trace.plain() for _ in range(20_000)]
    launches[-1].values["thread_id"] = 77
    launches[3].values["step_stamp"] = 5
    path = tmp_path / "4711.launches.kvt"
    path.write_bytes(trace.launch_file())
    found = read_launches(path).records
    assert found["thread_id"].to_list() == [0] * 19_999 + [77]
    assert found["step_stamp"].to_list() == [0, 0, 0, 5] + [0] * 19_996
    assert found["launch_flags"].unique().to_list() == [abi.constant("KVTRACE_LAUNCH_PATCHED")]
