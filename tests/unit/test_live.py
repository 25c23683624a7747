from builders import flags, header_bytes

from kvtrace_cli.capture.live import (
    LiveCounters,
    read_counters,
    recorded_processes,
    wait_quiet,
)
from kvtrace_cli.capture.progress import describe_counters
from kvtrace_cli.config import TimeLimits
from kvtrace_cli.dumps import abi


def test_headers_of_all_files_are_added_up(tmp_path):
    (tmp_path / "1-0.events.kvt").write_bytes(header_bytes("events", 10, dropped_count=2))
    (tmp_path / "1-1.events.kvt").write_bytes(header_bytes("events", 5))
    (tmp_path / "1.launches.kvt").write_bytes(header_bytes("launches", 3, dropped_count=1))
    assert read_counters(tmp_path) == LiveCounters(
        event_files=2, events=15, launches=3, dropped=3, patched=True
    )


def test_a_file_that_is_just_being_made_is_left_out(tmp_path):
    (tmp_path / "1-0.events.kvt").write_bytes(b"KVT")
    (tmp_path / "2-0.events.kvt").write_bytes(bytes(64))
    assert read_counters(tmp_path) == LiveCounters()
    assert not read_counters(tmp_path / "none").attached


def test_a_context_without_a_patched_module_is_not_attached(tmp_path):
    header = header_bytes("events", 0, flags=flags("CLOSED"))
    (tmp_path / "1-0.events.kvt").write_bytes(header)
    assert not read_counters(tmp_path).attached


def test_stores_among_the_events_are_told(tmp_path):
    header = header_bytes("events", 9, flags=flags("PATCHED", "WRITES"))
    (tmp_path / "1-0.events.kvt").write_bytes(header)
    counters = read_counters(tmp_path)
    assert counters.with_stores
    assert describe_counters(counters).startswith("9 block and store events")


def test_processes_that_record_and_those_that_saw_a_target(tmp_path):
    headers = {
        "7.launches.kvt": header_bytes("launches", 3, process_id=7, flags=flags("CLOSED")),
        "7-0.events.kvt": header_bytes("events", 0, process_id=7, flags=flags("PATCHED")),
        "7-1.events.kvt": header_bytes("events", 0, process_id=7, flags=flags("CLOSED")),
        "8-0.events.kvt": header_bytes("events", 0, process_id=8, flags=flags("CLOSED")),
        "9.activity.kva": header_bytes("activities", 0, process_id=9, flags=flags("CLOSED")),
    }
    for name, header in headers.items():
        (tmp_path / name).write_bytes(header)
    assert recorded_processes(tmp_path) == {7: True, 8: False, 9: True}


def test_the_first_failure_is_named(tmp_path):
    site = abi.constant("KVTRACE_SITE_PATCH_MODULE")
    header = header_bytes("events", 0, first_failure_site=site)
    (tmp_path / "1-0.events.kvt").write_bytes(header)
    assert read_counters(tmp_path).first_failure == "patch_module"


def test_counters_that_never_stand_still_are_given_up(tmp_path):
    looks = []

    def grow(counters):
        looks.append(counters.events)
        data = header_bytes("events", len(looks))
        (tmp_path / "1-0.events.kvt").write_bytes(data)

    limits = TimeLimits(quiet_s=0.1, drain_s=0.3, poll_s=0.02)
    assert not wait_quiet(tmp_path, limits, grow)
    assert wait_quiet(tmp_path, limits, lambda _counters: None)
