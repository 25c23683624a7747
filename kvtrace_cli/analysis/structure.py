"""How a run wrote the cache: kernels, graphs by shape, courses of requests, phases."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from typing import Any, Final

import polars as pl

from kvtrace_cli.analysis.kernel_families import kernel_family
from kvtrace_cli.analysis.kernels import bound_functions
from kvtrace_cli.analysis.launches import IS_MEASURED
from kvtrace_cli.analysis.measured import measured_stretches, measured_windows
from kvtrace_cli.analysis.measured_steps import foreign_processes
from kvtrace_cli.analysis.model import Attribution, Reconciliation, RequestWrites, RowCounts
from kvtrace_cli.analysis.outlines import (
    DIGEST_LETTERS,
    GEOMETRY,
    MOST_GRAPHS,
    MOST_KEPT,
    LaunchSorts,
    digest_of,
    period_of,
    runs_of,
)
from kvtrace_cli.analysis.ranks import Ranks, ranks_of
from kvtrace_cli.analysis.row_mapping import with_row_axis
from kvtrace_cli.analysis.run_facts import (
    Course,
    CourseRun,
    GraphOutline,
    KernelFacts,
    LayerBlocks,
    Phase,
    PhaseReplays,
    ProcessFacts,
    RequestFacts,
    RowFacts,
    SlotCoverage,
    Structure,
)
from kvtrace_cli.analysis.slot_coverage import blocks_with_two_writers, slot_coverage
from kvtrace_cli.analysis.steps import STEP_KIND, StepTables
from kvtrace_cli.dumps.schema import (
    CONTEXT_INDEX,
    LAUNCH_INDEX,
    LAYER_INDEX,
    PROCESS_ID,
    REQUEST_INDEX,
    Recording,
)

START_UP: Final = "start-up"
WARM_UP: Final = "warm-up request"
MEASURED: Final = "measured"
BETWEEN: Final = "between requests"
# The only phase of a run without requests.
WHOLE_LIFE: Final = "whole life"

_PHASES: Final = (START_UP, WARM_UP, MEASURED, BETWEEN, WHOLE_LIFE)
_COLUMNS: Final = (
    LAUNCH_INDEX,
    PROCESS_ID,
    CONTEXT_INDEX,
    REQUEST_INDEX,
    IS_MEASURED,
    LAYER_INDEX,
    STEP_KIND,
    "kernel_slot",
    "is_graph_node",
    "first_of_exec",
    "first_of_replay",
    "expected_blocks",
    "host_monotonic_ns",
    "graph_node",
    "grid_id",
)
_OUTLINE: Final = "outline"


def structure_of(
    result: Reconciliation,
    attribution: Attribution,
    recording: Recording,
    tables: StepTables,
) -> Structure:
    """Describe how a run wrote the cache, without anything that two equal runs have differently.

    Args:
        result: of `recording`.
        attribution: of `result`.
        recording: its requests say what was measured, its journals name the kernels.
        tables: its `step_tables`.

    Returns:
        Structure. Courses are given of measured requests that were alone only: which launches are
        whose cannot be told of others, and how they are batched depends on their timing.
    """
    launches = _launches(result, recording)
    sorts = LaunchSorts(launches)
    launches = launches.with_columns(sorts.numbers(launches).alias("sort")).drop(
        *(name for name in GEOMETRY if name != "kernel")
    )
    alone = [index for _, _, index in measured_stretches(recording.requests) if index is not None]
    slots = slot_coverage(attribution)
    requests = list(_requests(recording, attribution, set(alone), slots))
    return Structure(
        kernels=tuple(_kernels(launches, recording)),
        processes=tuple(_processes(launches, sorts, alone, ranks_of(recording))),
        requests=tuple(requests[:MOST_KEPT]),
        requests_total=len(requests),
        # Who was alone hangs on their timing.
        requests_digest=digest_of([replace(one, alone=True) for one in requests]),
        all_alone=len(alone) == len(requests),
        measured_rows=_rows(attribution.measured if attribution.has_steps else None),
        measured_stores=_rows(attribution.measured_stores if attribution.has_steps else None),
        stores=_rows(attribution.stores if attribution.has_steps else None),
        blocks_with_two_writers=blocks_with_two_writers(recording, tables),
    )


def _launches(result: Reconciliation, recording: Recording) -> pl.DataFrame:
    """Return the columns that are looked at, with `kernel` (a base name) and `phase`."""
    geometry = [name for name in GEOMETRY if name != "kernel"]
    launches = with_row_axis(result.launches.select(*_COLUMNS, *geometry), recording.journal)
    unnamed = pl.format("kernel slot {}", "kernel_slot")
    return launches.with_columns(
        pl.col("kernel").fill_null(unnamed), _phase(recording).alias("phase")
    )


def _phase(recording: Recording) -> pl.Expr:
    """Say when each launch was submitted, by the host's clock alone.

    Of a process with another clock than the requests' only what was measured is told apart.
    """
    requests, foreign = recording.requests, foreign_processes(recording.manifest)
    kinds = pl.Enum(_PHASES)
    begins = [one["host_monotonic_begin_ns"] for one in requests if _has_begun(one)]
    if not measured_windows(requests):
        return pl.lit(WHOLE_LIFE, kinds)
    launched = pl.col("host_monotonic_ns")
    in_warm_up = pl.lit(value=False)
    for one in requests:
        if one.get("role") != MEASURED and _has_begun(one):
            end = one.get("host_monotonic_end_ns")
            since = launched >= _ns(one["host_monotonic_begin_ns"])
            in_warm_up |= since & (launched <= _ns(end)) if end else since
    return (
        pl.when(IS_MEASURED)
        .then(pl.lit(MEASURED, kinds))
        .when(pl.col(PROCESS_ID).is_in(list(foreign)))
        .then(pl.lit(BETWEEN, kinds))
        .when(in_warm_up)
        .then(pl.lit(WARM_UP, kinds))
        .when(launched < _ns(min(begins)))
        .then(pl.lit(START_UP, kinds))
        .otherwise(pl.lit(BETWEEN, kinds))
    )


def _ns(value: int) -> pl.Expr:
    return pl.lit(value, pl.UInt64)


def _has_begun(request: dict[str, Any]) -> bool:
    return bool(request.get("host_monotonic_begin_ns"))


def _kernels(launches: pl.DataFrame, recording: Recording) -> Iterator[KernelFacts]:
    """Yield the kernels that were launched, by name, with the full names that were bound."""
    key = (PROCESS_ID, CONTEXT_INDEX, "kernel_slot")
    names = bound_functions(recording.journal).select(*key, "name").unique()
    counted = (
        launches.group_by(*key, "kernel")
        .agg(pl.len().alias("launches"), pl.col(IS_MEASURED).sum().alias("measured_launches"))
        .join(names, on=key, how="left")
        .group_by("kernel")
        .agg(pl.col("launches", "measured_launches").sum(), pl.col("name").drop_nulls().unique())
        .sort("kernel")
    )
    for row in counted.iter_rows(named=True):
        yield KernelFacts(
            kernel=row["kernel"],
            family=kernel_family(row["kernel"]),
            names=tuple(sorted(row["name"])),
            measured_launches=row["measured_launches"],
            launches=row["launches"],
        )


def _processes(
    launches: pl.DataFrame, sorts: LaunchSorts, alone: Sequence[int], ranks: Ranks
) -> Iterator[ProcessFacts]:
    """Yield what each process did, in the order of ranks and process ids; those alike as one."""
    numbers = {rank.process_id: rank.number for rank in ranks.present}
    by_process = launches.partition_by(PROCESS_ID, as_dict=True, maintain_order=True)
    alike: dict[ProcessFacts, list[int]] = {}
    for process_id in sorted(
        (pid for (pid,) in by_process), key=lambda pid: (numbers.get(pid, len(numbers)), pid)
    ):
        facts = _Process(by_process[process_id,], sorts).facts(alone)
        alike.setdefault(facts, []).append(process_id)
    for facts, process_ids in alike.items():
        names = [ranks.names[pid] for pid in process_ids if pid in ranks.names]
        yield replace(facts, processes=len(process_ids), ranks=tuple(names))


class _Process:
    """The launches of one process, with the outline of each replay."""

    def __init__(self, launches: pl.DataFrame, sorts: LaunchSorts) -> None:
        self._sorts = sorts
        nodes = launches.filter("is_graph_node")
        replays = (
            nodes.group_by("first_of_replay", maintain_order=True)
            .agg(
                pl.col("first_of_exec", "phase").first(),
                pl.col("sort").cast(pl.String).str.join(",").alias("nodes"),
                pl.struct("graph_node", "grid_id").hash().alias("node_hashes"),
            )
            .with_columns(pl.col("node_hashes").list.sum().alias("same"))
            .drop("node_hashes")
        )
        outlines = replays.select("nodes").unique(maintain_order=True).with_row_index(_OUTLINE)
        # As many shapes as sizes that are captured, but a graph whose parameters change has more.
        self._replays = replays.join(
            outlines, on="nodes", how="left", maintain_order="left", validate="m:1"
        ).with_columns(pl.col(_OUTLINE).clip(upper_bound=MOST_GRAPHS - 1))
        outlines = outlines.head(MOST_GRAPHS)
        self._node_sorts = [
            [int(number) for number in text.split(",")] for text in outlines["nodes"]
        ]
        self._digests = [
            digest_of([sorts.run(*run) for run in runs_of(nodes)]) for nodes in self._node_sorts
        ]
        numbers = self._replays.select("first_of_replay", _OUTLINE)
        self._launches = launches.join(
            numbers, on="first_of_replay", how="left", maintain_order="left", validate="m:1"
        )

    def facts(self, alone: Sequence[int]) -> ProcessFacts:
        """Return everything of one process."""
        courses = list(self._courses(alone))
        return ProcessFacts(
            processes=1,
            graphs=tuple(self._graphs()),
            courses=tuple(courses[:MOST_KEPT]),
            courses_digest=digest_of([course.digest for course in courses]),
            phases=tuple(self._phases()),
            blocks_per_layer=tuple(self._blocks_per_layer()),
        )

    def _of_requests(self) -> pl.DataFrame:
        """Leave out what an idle data rank runs along with the others: it hangs on their timing."""
        return self._launches.filter(pl.col(STEP_KIND).ne_missing("dummy"))

    def _graphs(self) -> Iterator[GraphOutline]:
        by_outline = (
            self._replays.group_by(_OUTLINE, maintain_order=True)
            .agg(
                pl.len().alias("replays"),
                (pl.col("phase") == MEASURED).sum().alias("measured"),
                pl.col("phase").first(),
                pl.col("first_of_exec").n_unique().alias("execs"),
                pl.struct("first_of_exec", "same").n_unique().alias("node_sets"),
            )
            .sort(_OUTLINE)
        )
        for row in by_outline.iter_rows(named=True):
            sorts = self._node_sorts[row[_OUTLINE]]
            unit, repeats = period_of(runs_of(sorts))
            yield GraphOutline(
                nodes=len(sorts),
                node_runs=tuple(self._sorts.run(*run) for run in unit[:MOST_KEPT]),
                node_runs_total=len(unit),
                repeats=repeats,
                digest=self._digests[row[_OUTLINE]],
                execs=row["execs"],
                replays=row["replays"],
                measured_replays=row["measured"],
                same_nodes_in_every_replay=row["node_sets"] == row["execs"],
                first_in=row["phase"],
            )

    def _courses(self, alone: Sequence[int]) -> Iterator[Course]:
        """Yield what was launched for each request: neighbours alike are one run."""
        item = pl.struct(REQUEST_INDEX, _OUTLINE, pl.when(~pl.col("is_graph_node")).then("sort"))
        of_requests = self._of_requests().filter(pl.col(REQUEST_INDEX).is_in(list(alone)))
        runs = of_requests.group_by(item.rle_id().alias("run"), maintain_order=True).agg(
            pl.col(REQUEST_INDEX, _OUTLINE, "sort").first(),
            pl.len().alias("launches"),
            pl.col("first_of_replay").n_unique().alias("replays"),
        )
        by_request = runs.partition_by(REQUEST_INDEX, as_dict=True)
        for index in alone:
            yield self._course(index, by_request.get((index,), runs.head(0)))

    def _course(self, request_index: int, runs: pl.DataFrame) -> Course:
        # As many runs as launches where kernels alternate, so they are not all kept.
        digest = sha256()
        kept: list[CourseRun] = []
        is_replay = pl.col(_OUTLINE).is_not_null()
        for row in runs.iter_rows(named=True):
            run = self._course_run(row)
            digest.update(f"{run.replays} {run.plain} {self._graph_digest(run)}".encode())
            if len(kept) < MOST_KEPT:
                kept.append(run)
        return Course(
            request_index=request_index,
            replays=int(runs.filter(is_replay)["replays"].sum()),
            plain_launches=int(runs.filter(~is_replay)["launches"].sum()),
            runs=tuple(kept),
            runs_total=runs.height,
            digest=digest.hexdigest()[:DIGEST_LETTERS],
        )

    def _course_run(self, row: dict[str, Any]) -> CourseRun:
        if row[_OUTLINE] is None:
            return CourseRun(None, 0, self._sorts.run(row["sort"], row["launches"]))
        return CourseRun(row[_OUTLINE], row["replays"], None)

    def _graph_digest(self, run: CourseRun) -> str:
        """Return the digest of a run's nodes, which means the same in every run of the engine."""
        return "" if run.graph is None else self._digests[run.graph]

    def _phases(self) -> Iterator[Phase]:
        for name in _PHASES:
            launches = self._launches.filter(pl.col("phase") == name)
            if launches.is_empty():
                continue
            plain = launches.filter(~pl.col("is_graph_node"))
            histogram = (
                plain.group_by("sort", maintain_order=True)
                .agg(pl.len().alias("launches"))
                .sort("launches", descending=True, maintain_order=True)
            )
            replays = (
                self._replays.filter(pl.col("phase") == name)
                .group_by(_OUTLINE, maintain_order=True)
                .agg(pl.len())
            )
            runs = [self._sorts.run(*row) for row in histogram.iter_rows()]
            counts = [(self._digests[graph], count) for graph, count in replays.iter_rows()]
            yield Phase(
                name=name,
                plain_launches=plain.height,
                plain=tuple(runs[:MOST_KEPT]),
                replays=tuple(PhaseReplays(*row) for row in replays.head(MOST_KEPT).iter_rows()),
                digest=digest_of((sorted(map(repr, runs)), sorted(counts))),
            )

    def _blocks_per_layer(self) -> Iterator[LayerBlocks]:
        layers = (
            self._of_requests()
            .filter(IS_MEASURED, pl.col(LAYER_INDEX).is_not_null())
            .group_by(LAYER_INDEX)
            .agg(pl.col("expected_blocks").sum())
            .sort(LAYER_INDEX)
        )
        for blocks, count in runs_of(layers["expected_blocks"])[:MOST_KEPT]:
            yield LayerBlocks(count, blocks)


def _requests(
    recording: Recording,
    attribution: Attribution,
    alone: set[int],
    slots: Mapping[int, SlotCoverage],
) -> Iterator[RequestFacts]:
    """Yield the measured requests that were answered or begun, by index."""
    writes = {one.request_index: one for one in attribution.requests}
    asked = {one["request_index"]: one for one in recording.requests}
    for index in sorted(index for index, _, _ in measured_windows(recording.requests)):
        done = writes.get(index)
        yield RequestFacts(
            request_index=index,
            alone=index in alone,
            prompt_tokens=_length(asked[index].get("prompt_token_ids")),
            returned_tokens=_length(asked[index].get("returned_token_ids")),
            slots=slots.get(index),
            lacks=done.lacks if done else (),
            **{name: _of(done, name) for name in _COUNTS},
        )


_COUNTS: Final = (
    "cached_positions",
    "positions",
    "layers",
    "expected",
    "entered",
    "k_written",
    "v_written",
)


def _of(writes: RequestWrites | None, name: str) -> int | None:
    value: int | None = getattr(writes, name, None)
    return value


def _length(value: Any) -> int | None:
    return len(value) if isinstance(value, list) else None


def _rows(counts: RowCounts | None) -> RowFacts | None:
    return RowFacts(counts.padding, counts.dummy, counts.unknown) if counts else None
