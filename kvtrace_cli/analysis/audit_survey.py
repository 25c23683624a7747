"""A first look at all stores: what the rules must know of the whole before they judge a part."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import polars as pl

from kvtrace_cli.analysis.joined import store_slices
from kvtrace_cli.analysis.model import Reconciliation
from kvtrace_cli.analysis.steps import STEP_KEY
from kvtrace_cli.analysis.stores import located_slices
from kvtrace_cli.dumps.schema import Recording

# Yields all stores anew each time, a slice at a time: `located_stores` and their `pc`.
StoreSource = Callable[[], Iterator[pl.DataFrame]]

_INSTRUCTION = ("process_id", "pc")
_LAYER = ("process_id", "kv_group", "layer_index")
_SCHEMA = {
    "process_id": pl.UInt32,
    "step_stamp": pl.UInt32,
    "step_kind": pl.String,
    "kv_group": pl.UInt16,
    "layer_index": pl.UInt32,
    "pc": pl.UInt64,
    "in_kv_tensor": pl.Boolean,
}


@dataclass(frozen=True)
class Survey:
    """What all stores say together.

    Frames: `steps`: process_id, step_stamp and the `stores` of each step, without those of
    `other_instructions`: process_id and pc of instructions that never write a KV tensor, which did
    `other_outputs` stores; `layers`: process_id, kv_group, layer_index of each layer that was
    written, and `draft_only`, whether by draft steps only.
    """

    steps: pl.DataFrame
    layers: pl.DataFrame
    other_instructions: pl.DataFrame
    other_outputs: int

    @property
    def processes(self) -> set[int]:
        """The processes that stored anything into a KV tensor, or beside one."""
        return set(self.steps["process_id"].unique())


def store_source(result: Reconciliation, recording: Recording) -> StoreSource:
    """Return a source of the recording's stores, with their program counters."""

    def source() -> Iterator[pl.DataFrame]:
        parts = zip(located_slices(result, recording), store_slices(result.contexts), strict=True)
        return (located.with_columns(part["pc"]) for located, part in parts)

    return source


def survey(source: StoreSource) -> Survey:
    """Look at all stores once.

    A fused kernel also writes what it rotates or normalises, by instructions of its own: only an
    instruction that writes KV tensors otherwise can miss them.
    """
    counts = pl.concat(
        [pl.DataFrame(schema=_SCHEMA | {"stores": pl.UInt64}), *map(_counted, source())]
    )
    # Null without a layout: then nobody knows.
    is_outside = pl.col("in_kv_tensor").not_().fill_null(value=False)
    others = (
        counts.group_by(_INSTRUCTION)
        .agg(is_outside.all().alias("only_outside"), pl.col("stores").sum())
        .filter("only_outside")
    )
    counts = counts.join(others, on=_INSTRUCTION, how="anti")
    kind = pl.col("step_kind").fill_null("")
    return Survey(
        steps=counts.group_by(STEP_KEY).agg(pl.col("stores").sum()),
        layers=counts.filter(pl.col("layer_index").is_not_null())
        .group_by(_LAYER)
        .agg(((kind == "draft").any() & ~(kind == "forward").any()).alias("draft_only")),
        other_instructions=others.select(_INSTRUCTION),
        other_outputs=int(others["stores"].sum()),
    )


def _counted(stores: pl.DataFrame) -> pl.DataFrame:
    return (
        stores.select(pl.col(name).cast(dtype) for name, dtype in _SCHEMA.items())
        .group_by(list(_SCHEMA))
        .agg(pl.len().cast(pl.UInt64).alias("stores"))
    )
