"""The launcher's side of switching a recording: the file, and who has followed it."""

import json

import pytest

from kvtrace_cli.capture.recording_switch import RecordingSwitch
from kvtrace_cli.config import RecordingConfig
from kvtrace_cli.errors import ConfigError, RunFailedError


def turned(directory, name, *turns):
    lines = [{"event": "attached"}, *({"event": "recording_switched", "turn": t} for t in turns)]
    (directory / name).write_text("".join(f"{json.dumps(line)}\n" for line in lines))


def switch_in(directory):
    switch = RecordingSwitch(directory)
    switch.create()
    return switch


def asked(directory):
    return int.from_bytes((directory / "kvtrace.switch").read_bytes(), "little")


def test_each_switch_is_a_turn_and_waits_for_its_journal_line(tmp_path):
    switch = switch_in(tmp_path)
    assert (switch.is_on, asked(tmp_path)) == (True, 0)
    turned(tmp_path, "1.journal.jsonl", 1, 2)
    turned(tmp_path, "2.journal.jsonl", 1, 2)
    file = (tmp_path / "kvtrace.switch").stat().st_ino
    switch.set(on=False, patience_s=0, poll_s=0)
    assert (switch.is_on, asked(tmp_path)) == (False, 1)
    switch.set(on=False, patience_s=0, poll_s=0)
    assert asked(tmp_path) == 1
    switch.set(on=True, patience_s=0, poll_s=0)
    assert (switch.is_on, asked(tmp_path)) == (True, 2)
    # Processes have it mapped, so it is never another file.
    assert (tmp_path / "kvtrace.switch").stat().st_ino == file


def test_a_process_that_does_not_follow_is_named(tmp_path):
    switch = switch_in(tmp_path)
    turned(tmp_path, "1.journal.jsonl", 1)
    turned(tmp_path, "2.journal.jsonl")
    with pytest.raises(RunFailedError, match=r"turn 1 was not taken within 0 s by 2\.journal"):
        switch.set(on=False, patience_s=0, poll_s=0)


def test_where_nobody_records_nothing_is_switched(tmp_path):
    with pytest.raises(RunFailedError, match="none has a journal"):
        switch_in(tmp_path).set(on=False, patience_s=0, poll_s=0)


def test_switching_needs_stamps():
    with pytest.raises(ConfigError, match="switched: found no stamps"):
        RecordingConfig(switched=True, stamps=False)
