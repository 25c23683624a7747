"""Events of one file, piece by piece: their kinds, tags and sequences, checked once."""

from dataclasses import dataclass
from typing import Final

import numpy as np

from kvtrace_cli.dumps import abi
from kvtrace_cli.dumps.event_source import U16, U64, Bools, EventPiece, Records
from kvtrace_cli.dumps.in_order import in_order
from kvtrace_cli.dumps.record_file import RecordFile
from kvtrace_cli.dumps.schema import SEQUENCE_MODULUS, FileHeader, short_name
from kvtrace_cli.errors import DumpFormatError

# Sequences are worked out anew from every so many events on.
PIECE_RECORDS = 1 << 16
_TAGS: Final = ("tag0", "tag1", "tag2", "tag3")


@dataclass(frozen=True)
class _Look:
    """What one piece says: the first event at fault, and the sequence that comes after it."""

    next_sequence: int
    has_gaps: bool
    fault: str | None


class CheckedEvents:
    """The events of one file, each with the full sequence that its low 16 bits stand for.

    A sequence is the sum of the steps of its low 16 bits, which start from 0. A step of 0 cannot
    be, so it counts as 65,536. Drops in one place beyond 65,535 make the sequence too low by a
    multiple of that; the header's drop counter is exact.
    """

    def __init__(self, file: RecordFile, header: FileHeader) -> None:
        """Check all events.

        Raises:
            DumpFormatError: the file holds fewer events than its header counts, an event is of an
                unknown kind, or tags differ, step back, or do not follow from the sequence.
        """
        self._file = file
        self._header = header
        self._size = PIECE_RECORDS
        self._first_sequences = [0]
        self._has_gaps = False
        self._known_kinds = np.zeros(256, np.bool_)
        self._known_kinds[list(_event_kinds())] = True
        self._check()

    def read(self, first: int, count: int) -> EventPiece:
        """Return `count` events from the one at position `first` on, all of which are there.

        Raises:
            DumpFormatError: the file was changed since it was opened.
        """
        if not self._has_gaps:
            return EventPiece(self._records(first, count), _counted_up(first, count))
        number = min(first // self._size, len(self._first_sequences) - 1)
        begin = number * self._size
        records = self._records(begin - bool(begin), first + count - begin + bool(begin))
        skipped = _skipped(records, begin)
        sequence = _sequences(skipped, self._first_sequences[number])
        return EventPiece(records[len(records) - count :], sequence[first - begin :])

    def _records(self, first: int, count: int) -> Records:
        return self._file.records(abi.EVENTS_STRUCT, first, count, self._header.record_count)

    def _check(self) -> None:
        """Look at the pieces, several at once: without gaps a sequence is a position."""
        pieces = -(-self._header.record_count // self._size)
        for number, guessed in enumerate(in_order(self._look_at, pieces)):
            look, sequence = guessed, self._first_sequences[-1]
            if sequence != number * self._size:
                look = self._look_at(number, sequence)
            if look.fault is not None:
                raise DumpFormatError(f"{self._file.path}: {look.fault}")
            self._has_gaps |= look.has_gaps
            self._first_sequences.append(look.next_sequence)

    def _look_at(self, number: int, first_sequence: int | None = None) -> _Look:
        begin = number * self._size
        count = min(self._size, self._header.record_count - begin)
        # Steps are seen against the event before.
        records = self._records(begin - bool(begin), count + bool(begin))
        piece = records[bool(begin) :]
        skipped = _skipped(records, begin)
        has_gaps = bool(skipped.any())
        sequence = begin if first_sequence is None else first_sequence
        end = sequence + count + (int(skipped.sum(dtype=np.uint64)) if has_gaps else 0)
        fault = self._strange_kind(piece, begin)
        if fault is None:
            wrong = self._wrong_tags(records, begin, skipped if has_gaps else None, sequence)
            fault = _tag_fault(piece, begin, wrong)
        return _Look(end, has_gaps, fault)

    def _strange_kind(self, piece: Records, begin: int) -> str | None:
        is_known = self._known_kinds[piece["event_kind"]]
        if is_known.all():
            return None
        at = int(is_known.argmin())
        names = _event_kinds()
        kinds = ", ".join(f"{kind} ({short_name(names[kind])})" for kind in sorted(names))
        return (
            f"event {begin + at} is of kind {piece['event_kind'][at]}, expected {kinds}; the file "
            "is damaged or of a newer kvtrace, copy it again or record again"
        )

    def _wrong_tags(
        self, records: Records, begin: int, skipped: U16 | None, first_sequence: int
    ) -> Bools:
        """Say of each event whether its tags differ, or are none of its sequence.

        With drops the sequence is known only up to 65,536, so only the direction can be checked.
        """
        tags = np.ascontiguousarray(records[_TAGS[0]])
        tag = tags[bool(begin) :]
        wrong = np.zeros(len(tag), np.bool_)
        for other in _TAGS[1:]:
            wrong |= tag != records[other][bool(begin) :]
        if self._header.dropped_count:
            step = np.subtract(tags[1:], tags[:-1])
            wrong[not begin :] |= step > SEQUENCE_MODULUS // 2
            return wrong
        sequence = (
            _counted_up(first_sequence, len(tag))
            if skipped is None
            else _sequences(skipped, first_sequence)
        )
        laps = sequence // np.uint64(max(self._header.capacity, 1))
        wrong |= tag != (laps + np.uint64(1)).astype(np.uint16)
        return wrong


def _event_kinds() -> dict[int, str]:
    return abi.enumerators("kvtrace_event_kind")


def _skipped(records: Records, begin: int) -> U16:
    """Return how many sequences are missing before each event, modulo 65,536.

    Args:
        records: with the one before, unless they are a file's first.
        begin: position of the first one to say it of.
    """
    low = np.ascontiguousarray(records["sequence_low"])
    if begin:
        return np.asarray(low[1:] - low[:-1] - np.uint16(1))
    skipped = np.empty_like(low)
    skipped[:1] = low[:1]
    np.subtract(low[1:], low[:-1] + np.uint16(1), out=skipped[1:])
    return skipped


def _sequences(skipped: U16, first_sequence: int) -> U64:
    steps = skipped.astype(np.uint64) + np.uint64(1)
    steps[:1] += np.uint64(first_sequence)
    sequences: U64 = np.cumsum(steps) - np.uint64(1)
    return sequences


def _counted_up(first: int, count: int) -> U64:
    return np.arange(first, first + count, dtype=np.uint64)


def _tag_fault(piece: Records, begin: int, wrong: Bools) -> str | None:
    if not wrong.any():
        return None
    at = int(wrong.argmax())
    found = [int(piece[name][at]) for name in _TAGS]
    return (
        f"event {begin + at} has the tags {found}, expected four equal ones that follow its "
        "sequence (docs/format.md); the file is damaged, copy it again or record again"
    )
