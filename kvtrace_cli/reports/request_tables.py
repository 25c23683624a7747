"""Whose the rows were, as tables that are readable at 80 columns."""

from collections.abc import Iterator, Sequence
from typing import Final

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from kvtrace_cli.analysis.model import Attribution, Reconciliation, RequestWrites, RowCounts
from kvtrace_cli.reports.cells import count, fault_count, marked_title, new_table

_MOST_REQUESTS: Final = 20
# So that the widest rows of usual counts fit into 80 columns.
_LONGEST_ID: Final = 14
_NONE: Final = "-"


def attribution_tables(
    result: Reconciliation, attribution: Attribution, measured: str
) -> Iterator[RenderableType]:
    """Yield rows by owner, then the requests; `measured` names the measured stretch."""
    yield _rows_table(attribution, measured, marked_title(result, "Rows of the batch, by owner"))
    own = [request for request in attribution.requests if request.is_engine_own]
    others = [request for request in attribution.requests if not request.is_engine_own]
    shown = _shown(others)
    layers = "layers of all ranks" if result.ranks.are_several else "layers"
    table = _requests_table(marked_title(result, f"Token positions x {layers}, by request"))
    for request in shown:
        _add_request(table, _label(request), request)
    if own:
        _add_engine_own(table, own)
    yield table
    if len(shown) < len(others):
        yield Text(_rest(others, shown))


def _rows_table(attribution: Attribution, measured: str, title: str) -> Table:
    table = new_table(title)
    table.add_column("stretch")
    table.add_column("counted")
    for name in ("owned", "padding", "dummy", "draft", "unknown"):
        table.add_column(name, justify="right")
    stretches = (
        (measured, attribution.measured, attribution.measured_stores),
        ("whole life", attribution.whole_life, attribution.stores),
    )
    for stretch, entries, stores in stretches:
        if entries:
            table.add_row(stretch, "entries", *_row_cells(entries))
        if stores:
            table.add_row("", "stores", *_row_cells(stores))
    return table


def _row_cells(rows: RowCounts) -> list[RenderableType]:
    counts = (rows.owned, rows.padding, rows.dummy, rows.draft)
    return [*map(count, counts), fault_count(rows.unknown)]


def _shown(requests: Sequence[RequestWrites]) -> list[RequestWrites]:
    """Choose those that lack something first; keep the order."""
    chosen = sorted(range(len(requests)), key=lambda at: (not requests[at].lacks, at))
    return [requests[at] for at in sorted(chosen[:_MOST_REQUESTS])]


def _requests_table(title: str) -> Table:
    table = new_table(title)
    table.add_column("request", no_wrap=True)
    for name in ("prompt", "cached", "tokens", "layers", "entered", "K", "V"):
        table.add_column(name, justify="right")
    table.add_column("lacks", overflow="fold", min_width=6)
    return table


def _label(request: RequestWrites) -> str:
    if request.request_index is not None:
        return str(request.request_index)
    name = request.request_id
    return name if len(name) <= _LONGEST_ID else f"{name[: _LONGEST_ID - 2]}.."


def _add_request(table: Table, label: str, request: RequestWrites) -> None:
    table.add_row(
        label,
        _known(request.prompt_tokens),
        count(request.cached_positions),
        count(request.positions),
        count(request.layers),
        count(request.entered),
        _known(request.k_written),
        _known(request.v_written),
        _lacks(request.lacks),
    )


def _add_engine_own(table: Table, own: Sequence[RequestWrites]) -> None:
    lacking = sum(bool(request.lacks) for request in own)
    table.add_row(
        f"engine's ({len(own)})",
        _NONE,
        count(sum(request.cached_positions for request in own)),
        count(sum(request.positions for request in own)),
        count(max(request.layers for request in own)),
        count(sum(request.entered for request in own)),
        _known(_added([request.k_written for request in own])),
        _known(_added([request.v_written for request in own])),
        _lacks((f"{lacking} incomplete",) if lacking else ()),
    )


def _added(counts: Sequence[int | None]) -> int | None:
    known = [value for value in counts if value is not None]
    return sum(known) if len(known) == len(counts) else None


def _known(value: int | None) -> str:
    return _NONE if value is None else count(value)


def _lacks(missing: Sequence[str]) -> Text:
    return Text(", ".join(missing), style="bold red") if missing else Text(_NONE)


def _rest(requests: Sequence[RequestWrites], shown: Sequence[RequestWrites]) -> str:
    rest = len(requests) - len(shown)
    lacking = sum(bool(request.lacks) for request in requests) - sum(
        bool(request.lacks) for request in shown
    )
    state = f"{lacking} of them incomplete" if lacking else "all complete"
    return f"and {rest} more requests, {state}; --json has them all"
