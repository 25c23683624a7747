"""Tokens that a request took as computed from the prefix cache, and whether they were written."""

from collections.abc import Iterator

import polars as pl

from kvtrace_cli.analysis.audit_input import AuditInput
from kvtrace_cli.analysis.audit_model import Rule
from kvtrace_cli.analysis.audit_writes import OWNED, StepSlice

_BLOCK = ("process_id", "kv_group", "kv_block_id")
_SLOT = (*_BLOCK, "offset")
_WRITTEN_SCHEMA = {
    "process_id": pl.UInt32,
    "kv_group": pl.UInt16,
    "kv_block_id": pl.Int64,
    "offset": pl.Int64,
    "step_stamp": pl.UInt32,
    "first_position": pl.Int64,
    "last_position": pl.Int64,
    "writer": pl.String,
}
# Tokens that holdings are expanded to at a time; the last one may have more.
_SLICE_TOKENS = 1 << 17


class CachedTokens:
    """Follows what is written into KV blocks that are taken from the prefix cache."""

    def __init__(self, given: AuditInput) -> None:
        """Find the KV blocks that a request took as computed, and those they were copied from."""
        self._given = given
        self._needed = _needed(given)
        wanted = self._needed.select(_BLOCK).unique()
        origins = given.copies.join(given.groups, on="process_id").select(
            "process_id", "kv_group", pl.col("from_block").alias("kv_block_id")
        )
        self._watched = pl.concat([wanted, origins]).unique()
        self._written = [pl.DataFrame(schema=_WRITTEN_SCHEMA)]

    def add(self, part: StepSlice) -> None:
        """Take in the writes of a slice; slices come in the order of steps."""
        written = (
            part.writes.filter(pl.col("owner") == OWNED)
            .join(self._watched, on=_BLOCK, how="semi")
            .with_columns(pl.when("is_exact").then("position").alias("position"))
            .group_by(*_SLOT, "step_stamp")
            .agg(
                pl.col("position").min().cast(pl.Int64).alias("first_position"),
                pl.col("position").max().cast(pl.Int64).alias("last_position"),
                pl.col("request_id").first().alias("writer"),
            )
        )
        self._written.append(written)

    def findings(self) -> pl.DataFrame:
        """Return the cached tokens whose slot held nothing, or another token, in their step.

        What a step writes itself counts: within a layer all rows write before any row reads. A slot
        that lacks only some layers is left to the row that should have written them.
        """
        written = _with_copies(pl.concat(self._written), self._given.copies).sort("step_stamp")
        cut = (pl.col("cached").cum_sum() - pl.col("cached")) // _SLICE_TOKENS
        parts = [
            _unwritten(_tokens(part.drop("cut")), written)
            for part in self._needed.with_columns(cut.alias("cut")).partition_by(
                "cut", maintain_order=True
            )
        ]
        return pl.concat([_unwritten(_tokens(self._needed.head(0)), written), *parts])


def _needed(given: AuditInput) -> pl.DataFrame:
    """Return the holdings of which some tokens were computed already.

    The null block needs no write, nor does a group whose layers no recorded kernel writes.
    """
    start = pl.col("block_index").cast(pl.Int64) * pl.col("block_size")
    return (
        given.tables.holdings.join(given.groups, on=["process_id", "kv_group"])
        .join(given.expected, on=["process_id", "kv_group"], how="semi")
        .filter(
            pl.col("writes_from").cast(pl.Int64) > start,
            (pl.col("kv_block_id") != pl.col("null_block")).fill_null(value=True),
        )
        .with_columns(
            pl.min_horizontal(pl.col("writes_from").cast(pl.Int64) - start, "block_size").alias(
                "cached"
            )
        )
    )


def _tokens(needed: pl.DataFrame) -> pl.DataFrame:
    """Expand holdings to their cached tokens."""
    return (
        needed.with_columns(pl.int_ranges("cached").alias("offset"))
        .explode("offset")
        .select(
            *_SLOT,
            pl.col("first_step").alias("step_stamp"),
            "request_id",
            (pl.col("block_index").cast(pl.Int64) * pl.col("block_size") + pl.col("offset")).alias(
                "position"
            ),
            (pl.col("kv_block_id") * pl.col("block_size") + pl.col("offset")).alias(
                "expected_slot"
            ),
        )
    )


def _unwritten(tokens: pl.DataFrame, written: pl.DataFrame) -> pl.DataFrame:
    """Return the tokens that are not what was last written into their slot."""
    found = tokens.sort("step_stamp").join_asof(
        written, on="step_stamp", by=list(_SLOT), strategy="backward", check_sortedness=False
    )
    holds_another = (pl.col("first_position") != pl.col("position")) | (
        pl.col("last_position") != pl.col("position")
    )
    return found.filter(
        pl.col("writer").is_null() | holds_another.fill_null(value=False)
    ).with_columns(
        pl.lit(Rule.READ_BEFORE_WRITE.value).alias("rule"),
        pl.lit("forward").alias("step_kind"),
        pl.col("writer").alias("held_by"),
        pl.col("last_position").alias("held_position"),
        pl.lit(0, pl.UInt32).alias("stores"),
    )


def _with_copies(written: pl.DataFrame, copies: pl.DataFrame) -> pl.DataFrame:
    """Let a copied KV block hold what the one it was copied from held before the step."""
    involved = pl.concat([copies["from_block"], copies["to_block"]]).unique()
    pieces = [written.filter(pl.col("kv_block_id").is_in(involved.implode()))]
    for copy in copies.sort("step_stamp", maintain_order=True).iter_rows(named=True):
        pieces.extend(_copied(pieces, copy))
    return pl.concat([written, *pieces[1:]])


def _copied(pieces: list[pl.DataFrame], copy: dict[str, int]) -> Iterator[pl.DataFrame]:
    held = pl.concat(
        piece.filter(
            pl.col("process_id") == copy["process_id"],
            pl.col("kv_block_id") == copy["from_block"],
            pl.col("step_stamp") < copy["step_stamp"],
        )
        for piece in pieces
    )
    if held.height:
        last = held.sort("step_stamp").group_by(_SLOT, maintain_order=True).last()
        yield last.with_columns(
            pl.lit(copy["to_block"], pl.Int64).alias("kv_block_id"),
            pl.lit(copy["step_stamp"], pl.UInt32).alias("step_stamp"),
        ).select(held.columns)
