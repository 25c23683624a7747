"""Reading dump files: what is whole is read, and each way of being damaged is named."""

import gzip

import builders
import pytest

from kvtrace_cli.dumps import abi
from kvtrace_cli.dumps.reader import read_events, read_launches
from kvtrace_cli.dumps.schema import event_schema, failure_site_name, flag_names, record_schema
from kvtrace_cli.errors import DumpFormatError


@pytest.fixture
def path(tmp_path):
    return tmp_path / "4711-0.events.kvt"


def header(**changes):
    return builders.header_bytes("events", **({"record_count": 0} | changes))


def test_events_come_back_as_they_were_written(path):
    trace = builders.seven_replays(nodes=3)
    trace.events[4].update(
        block_idx_x=(1 << 32) - 1, block_idx_y=65535, block_idx_z=2, sm_id=131, address=1 << 63
    )
    path.write_bytes(trace.event_file())
    dump = read_events(path)
    assert dict(dump.records.schema) == event_schema()
    expected = [
        {name: event.get(name, 0) for name in event_schema() if name != "sequence"}
        for event in trace.events
    ]
    assert dump.records.drop("sequence").to_dicts() == expected
    assert dump.records["sequence"].to_list() == list(range(21))
    assert (dump.name, dump.header.record_count) == (path.name, 21)


def test_launches_come_back_as_they_were_written(tmp_path):
    trace = builders.Trace()
    launch = trace.plain((70_000, 9, 8), thread_id=77, device_ordinal=3, step_stamp=12)
    path = tmp_path / "4711.launches.kvt"
    path.write_bytes(trace.launch_file())
    records = read_launches(path).records
    assert dict(records.schema) == record_schema(abi.LAUNCHES_STRUCT)
    assert records.to_dicts() == [{name: launch.values.get(name, 0) for name in records.columns}]


@pytest.mark.parametrize("count", [16_383, 16_384, 16_385, 40_000])
def test_records_at_the_edges_of_the_readers_pieces(path, count):
    event = builders.struct_bytes(abi.EVENTS_STRUCT, event_kind=1)
    name, size = "sequence_low", abi.size_of(abi.EVENTS_STRUCT)
    tags = [field for field in abi.fields(abi.EVENTS_STRUCT) if field.name.startswith("tag")]
    low = next(field for field in abi.fields(abi.EVENTS_STRUCT) if field.name == name)
    data = bytearray(event * count)
    for position in range(count):
        for field in tags:
            data[position * size + field.offset] = 1
        at = position * size + low.offset
        data[at : at + 2] = (position % 65536).to_bytes(2, "little")
    path.write_bytes(header(record_count=count) + data)
    assert read_events(path).records["sequence"].to_list() == list(range(count))


def test_packed_files_are_read_in_place(tmp_path):
    trace = builders.seven_replays()
    path = tmp_path / "4711-0.events.kvt.gz"
    path.write_bytes(gzip.compress(trace.event_file()))
    assert read_events(path).records.height == 280


def test_an_empty_file_gives_an_empty_frame(path):
    path.write_bytes(header())
    records = read_events(path).records
    assert (records.height, dict(records.schema)) == (0, event_schema())


def test_sequences_go_on_after_65535_and_step_over_drops(path):
    trace = builders.Trace(capacity=1 << 16)
    launch = trace.plain((4, 1, 1))
    trace.enter(launch)
    trace.drop(65_000)
    trace.enter(launch)
    trace.drop(600)
    trace.enter(launch)
    path.write_bytes(trace.event_file())
    assert read_events(path).records["sequence"].to_list() == [0, 65_001, 65_602]


FAULTS = {
    "shorter than a header": (lambda: header()[:63], "63 bytes, shorter than the 64"),
    "empty": (lambda: b"", "0 bytes, shorter"),
    "magic": (lambda: header(magic=0x4141414141414141), r"starts with b'AAAAAAAA', a block event"),
    "a launch file": (
        lambda: builders.header_bytes("launches", 0),
        "b'KVTLAUNC', a block event file starts with b'KVTEVENT'",
    ),
    "ABI version": (
        lambda: header(abi_version=99),
        "ABI version 99, this kvtrace reads 1; install",
    ),
    "record size": (lambda: header(record_size=72), "records of 72 bytes, a block event has 64"),
    "count too large": (
        lambda: builders.seven_replays(1).event_file(record_count=9),
        "the header counts 9 records, the file holds 7",
    ),
    "torn record": (
        lambda: builders.seven_replays(1).event_file()[:-1],
        "the header counts 7 records, the file holds 6",
    ),
    "trailing bytes": (
        lambda: builders.seven_replays(1).event_file() + b"12345",
        "5 bytes after the last of 7 records",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_damaged_file_is_named_with_what_was_found_and_expected(path, fault):
    content, message = FAULTS[fault]
    path.write_bytes(content())
    with pytest.raises(DumpFormatError, match=message) as caught:
        read_events(path)
    assert str(path) in str(caught.value)


TAG_FAULTS = {
    "one differs": {"tag2": 9},
    "all of another lap": {f"tag{part}": 2 for part in range(4)},
    "never written": {f"tag{part}": 0 for part in range(4)},
}


@pytest.mark.parametrize("fault", TAG_FAULTS)
def test_wrong_tags_are_refused(path, fault):
    trace = builders.seven_replays()
    trace.events[33].update(TAG_FAULTS[fault])
    path.write_bytes(trace.event_file())
    with pytest.raises(DumpFormatError, match="event 33 has the tags"):
        read_events(path)


@pytest.mark.parametrize("kind", [0, 3, 255])
def test_an_event_of_an_unknown_kind_is_refused(path, kind):
    trace = builders.seven_replays()
    trace.events[33]["event_kind"] = kind
    path.write_bytes(trace.event_file())
    message = rf"event 33 is of kind {kind}, expected 1 \(block_enter\), 2 \(global_store\)"
    with pytest.raises(DumpFormatError, match=message):
        read_events(path)


def test_tags_may_not_step_back_where_events_were_dropped(path):
    trace = builders.Trace(capacity=2)
    launch = trace.plain((8, 1, 1))
    for _ in range(3):
        trace.enter(launch)
    trace.drop()
    trace.enter(launch, **{f"tag{part}": 1 for part in range(4)})
    path.write_bytes(trace.event_file())
    with pytest.raises(DumpFormatError, match="event 3 has the tags"):
        read_events(path)


def test_tags_wrap_after_65535_laps(path):
    trace = builders.Trace(capacity=1)
    launch = trace.plain()
    for _ in range(65_540):
        trace.enter(launch)
    path.write_bytes(trace.event_file())
    assert read_events(path).records.height == 65_540


def test_a_file_that_was_not_closed_may_go_on_after_its_records(path):
    trace = builders.seven_replays()
    content = trace.event_file(record_count=100, flags=builders.flags("PATCHED"))
    path.write_bytes(content[:-7])
    assert read_events(path).records.height == 100


@pytest.mark.parametrize("kept", [64, 64 + 64 * 100 + 7])
def test_a_whole_gzip_file_of_a_dump_that_was_cut_short_is_told_as_that(tmp_path, kept):
    path = tmp_path / "4711-0.events.kvt.gz"
    path.write_bytes(gzip.compress(builders.seven_replays().event_file()[:kept]))
    held = (kept - 64) // 64
    with pytest.raises(DumpFormatError, match=f"counts 280 records, the file holds {held}; it was"):
        read_events(path)


def test_a_missing_file_is_an_error_of_ours(tmp_path):
    with pytest.raises(DumpFormatError, match="cannot be read"):
        read_launches(tmp_path / "1.launches.kvt")


def test_flags_and_failure_sites_have_short_names():
    assert flag_names("kvtrace_file_flag", builders.flags("CLOSED", "EMULATED") | 1 << 20) == (
        "closed",
        "emulated",
        str(1 << 20),
    )
    assert failure_site_name(9) == "patch_module"
    assert failure_site_name(999) == "999"
