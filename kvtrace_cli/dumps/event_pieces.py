"""Events of one file, piece by piece: their sequences, their tags, and one frame in the end."""

from collections.abc import Iterable
from pathlib import Path

import polars as pl

from kvtrace_cli.dumps import abi
from kvtrace_cli.dumps.schema import (
    SEQUENCE,
    SEQUENCE_MODULUS,
    FileHeader,
    event_schema,
    short_name,
)
from kvtrace_cli.errors import DumpFormatError


class EventCheck:
    """Gives the events of one file their sequence and checks their tags, piece after piece."""

    def __init__(self, path: Path, header: FileHeader) -> None:
        self._path = path
        self._header = header
        self._position = 0
        self._next_sequence = 0
        self._last_low = SEQUENCE_MODULUS - 1
        self._last_tag: int | None = None

    def check(self, piece: pl.DataFrame) -> pl.DataFrame:
        """Return the piece with its sequences and without its tags.

        Raises:
            DumpFormatError: an event is of an unknown kind, or tags differ, step back, or do not
                follow from the sequence.
        """
        self._check_kinds(piece)
        with_sequence = self._with_sequence(piece)
        self._check_tags(with_sequence)
        self._position += piece.height
        self._next_sequence = with_sequence[SEQUENCE][-1] + 1
        self._last_low = piece["sequence_low"][-1]
        self._last_tag = piece[_tags(piece)[0]][-1]
        return with_sequence.select(*event_schema())

    def _check_kinds(self, piece: pl.DataFrame) -> None:
        known = abi.enumerators("kvtrace_event_kind")
        strange = piece.select((~pl.col("event_kind").is_in(list(known))).arg_true()).to_series()
        if len(strange):
            kinds = ", ".join(f"{kind} ({short_name(known[kind])})" for kind in sorted(known))
            raise DumpFormatError(
                f"{self._path}: event {self._position + strange[0]} is of kind "
                f"{piece['event_kind'][strange[0]]}, expected {kinds}; the file is damaged or of a "
                "newer kvtrace, copy it again or record again"
            )

    def _with_sequence(self, piece: pl.DataFrame) -> pl.DataFrame:
        """Add the full sequence: the sum of the steps of its low 16 bits, which start from 0.

        A step of 0 cannot be, so it counts as 65,536. Drops in one place beyond 65,535 make the
        sequence too low by a multiple of that; the header's drop counter is exact.
        """
        low = pl.col("sequence_low").cast(pl.UInt64)
        before = low.shift(1, fill_value=self._last_low)
        step = (low + 2 * SEQUENCE_MODULUS - before - 1) % SEQUENCE_MODULUS + 1
        return piece.with_columns((step.cum_sum() + self._next_sequence - 1).alias(SEQUENCE))

    def _check_tags(self, piece: pl.DataFrame) -> None:
        tags = _tags(piece)
        tag = pl.col(tags[0])
        differ = pl.any_horizontal(tag != pl.col(other) for other in tags[1:])
        exact = (1 + pl.col(SEQUENCE) // max(self._header.capacity, 1)) % SEQUENCE_MODULUS
        # With drops the sequence is known only up to 65,536, so only the direction can be checked.
        before = tag.shift(1, fill_value=self._last_tag)
        step = (tag.cast(pl.UInt32) + SEQUENCE_MODULUS - before) % SEQUENCE_MODULUS
        wrong = step > SEQUENCE_MODULUS // 2 if self._header.dropped_count else tag != exact
        faults = piece.lazy().with_row_index().filter(differ | wrong).head(1).collect()
        if faults.is_empty():
            return
        position = self._position + faults["index"][0]
        found = [faults[name][0] for name in tags]
        raise DumpFormatError(
            f"{self._path}: event {position} has the tags {found}, expected four equal ones that "
            "follow its sequence (docs/format.md); the file is damaged, copy it again or record "
            "again"
        )


def _tags(events: pl.DataFrame) -> list[str]:
    return [name for name in events.columns if name.startswith("tag")]


def put_together(pieces: Iterable[pl.DataFrame]) -> pl.DataFrame:
    """Return the pieces as one frame of events.

    Most columns of most recordings have one value throughout: those are held as that value, once.
    """
    columns: dict[str, list[pl.Series]] = {name: [] for name in event_schema()}
    heights: list[int] = []
    for piece in pieces:
        heights.append(piece.height)
        for column in piece:
            is_constant = column.name != SEQUENCE and column.min() == column.max()
            columns[column.name].append(column.head(1) if is_constant else column)
    constants: list[pl.Expr] = []
    varying: list[pl.Series] = []
    for name, dtype in event_schema().items():
        values = {part[0] for part in columns[name] if len(part) == 1}
        if name != SEQUENCE and len(values) == 1 and all(len(part) == 1 for part in columns[name]):
            constants.append(pl.lit(values.pop(), dtype).alias(name))
            continue
        parts = (
            part if len(part) == height else part.new_from_index(0, height)
            for part, height in zip(columns[name], heights, strict=True)
        )
        varying.append(pl.concat([pl.Series(name, dtype=dtype), *parts]))
    return pl.DataFrame(varying).with_columns(constants).select(*event_schema())
