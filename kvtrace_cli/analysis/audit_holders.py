"""Who holds a KV block in a step: the requests whose block table has it then."""

import polars as pl

_PLACE = ("process_id", "step_stamp", "kv_group", "kv_block_id")
_TOUCH = (*_PLACE, "request_id")


def with_holders(
    writes: pl.DataFrame, holdings: pl.DataFrame, groups: pl.DataFrame, rows: pl.DataFrame
) -> pl.DataFrame:
    """Add to each write who holds the KV block that it went to.

    Args:
        writes: with process_id, step_stamp, kv_group, kv_block_id, offset, request_id.
        holdings: those of the writes' steps at least.
        groups: `groups` of AuditInput.
        rows: the rows of all steps, which tell how far a request had come.

    Returns:
        `writes` with `null_block`; `holders` (requests that hold the KV block), `is_holder`
        (whether the writing one does); `conflict`: whether another one holds it that does not just
        read it, since it computes tokens of it itself or has it at another place of its table;
        `maybe_freed`: whether that one may have lost the KV block, which lies behind its window as
        far as that is known; `held_by` and `held_position`: another holder, the conflicting one
        before others, or the writing request itself, and its token in the written slot.
    """
    touches = (
        writes.select(_TOUCH)
        .unique(maintain_order=True)
        .filter(pl.col("kv_block_id").is_not_null())
        .join(groups, on=["process_id", "kv_group"], how="left", maintain_order="left")
        .with_row_index("touch")
    )
    held = _with_freed(_held(touches, holdings), rows)
    # A KV block that is surely behind the window of a request is that request's no more.
    held = held.filter(~(pl.col("is_freed") & pl.col("window_is_certain")))
    is_own = pl.col("holder") == pl.col("request_id")
    own = held.filter(is_own).group_by("touch").agg(pl.col("block_index").first().alias("own_at"))
    others = _judged_others(held.filter(is_own.not_().fill_null(value=True)), own)
    found = touches.join(own, on="touch", how="left", maintain_order="left").join(
        others, on="touch", how="left", maintain_order="left"
    )
    holder_at = pl.coalesce("other_at", "own_at").cast(pl.Int64)
    answers = found.select(
        *_TOUCH,
        "null_block",
        (pl.col("others").fill_null(0) + pl.col("own_at").is_not_null()).alias("holders"),
        pl.col("own_at").is_not_null().alias("is_holder"),
        pl.col("conflict").fill_null(value=False),
        pl.col("maybe_freed").fill_null(value=False),
        pl.when(pl.col("other").is_null() & pl.col("own_at").is_not_null())
        .then("request_id")
        .otherwise("other")
        .alias("held_by"),
        (holder_at * pl.col("block_size")).alias("held_position"),
    )
    return writes.join(
        answers, on=_TOUCH, how="left", nulls_equal=True, maintain_order="left"
    ).with_columns(pl.col("held_position") + pl.col("offset").cast(pl.Int64))


def _held(touches: pl.DataFrame, holdings: pl.DataFrame) -> pl.DataFrame:
    """Return of each touch all holdings of its KV block in its step."""
    step = pl.col("step_stamp")
    return touches.join(
        holdings.rename({"request_id": "holder"}),
        on=["process_id", "kv_group", "kv_block_id"],
        maintain_order="left",
    ).filter(
        pl.col("first_step") <= step, pl.col("end_step").is_null() | (pl.col("end_step") > step)
    )


def _judged_others(others: pl.DataFrame, own: pl.DataFrame) -> pl.DataFrame:
    """Return of each touch the number of other holders, and the one that matters most."""
    elsewhere = (pl.col("block_index") != pl.col("own_at")).fill_null(value=False)
    judged = others.join(own, on="touch", how="left", maintain_order="left").with_columns(
        ((pl.col("writes_from").cast(pl.Int64) < _block_end()) | elsewhere).alias("conflict")
    )
    judged = judged.with_columns(
        (pl.col("conflict") & pl.col("is_freed")).alias("maybe_freed")
    ).with_columns(pl.col("conflict") & ~pl.col("maybe_freed"))
    return (
        judged.sort("touch", pl.col("conflict").not_(), pl.col("maybe_freed").not_(), "first_step")
        .group_by("touch", maintain_order=True)
        .agg(
            pl.len().alias("others"),
            pl.col("conflict").first(),
            pl.col("maybe_freed").any(),
            pl.col("holder").first().alias("other"),
            pl.col("block_index").first().alias("other_at"),
        )
    )


def _block_end() -> pl.Expr:
    return (pl.col("block_index").cast(pl.Int64) + 1) * pl.col("block_size")


def _with_freed(held: pl.DataFrame, rows: pl.DataFrame) -> pl.DataFrame:
    """Add to each holding `is_freed`: whether the KV block is wholly behind its holder's window.

    The engine takes such a block back when it plans the step, so what the holder computed in the
    steps before counts; with steps in flight it does so later.
    """
    window, chunk = pl.col("sliding_window"), pl.col("attention_chunk_size")
    may_free = window.is_not_null() | chunk.is_not_null()
    held = held.with_row_index("holding")
    asked = held.filter(may_free).sort("step_stamp")
    reached = (
        rows.join(
            asked.select("process_id", pl.col("holder").alias("request_id")).unique(),
            on=["process_id", "request_id"],
            how="semi",
        )
        .group_by("process_id", "request_id", "step_stamp")
        .agg(pl.col("position").max().cast(pl.Int64).alias("reached"))
        .with_columns(pl.col("step_stamp").alias("reached_step"))
        .sort("step_stamp")
    )
    computed = pl.col("reached") + 1
    skipped = pl.max_horizontal(computed - window + 1, computed // chunk * chunk)
    freed = asked.join_asof(
        reached,
        on="step_stamp",
        by_left=["process_id", "holder"],
        by_right=["process_id", "request_id"],
        strategy="backward",
        allow_exact_matches=False,
        check_sortedness=False,
    ).filter(
        # What a request computed before it was preempted is not what it has computed now.
        pl.col("reached_step") >= pl.col("first_step"),
        skipped >= _block_end(),
    )
    return held.with_columns(pl.col("holding").is_in(freed["holding"].implode()).alias("is_freed"))
