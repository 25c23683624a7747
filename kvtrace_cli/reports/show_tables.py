"""The life of one token, readable at 80 columns."""

from collections.abc import Iterator

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from kvtrace_cli.analysis.audit_model import LayerWrite, TokenLife, TokenPass

_PART_ORDER = ("K", "V", "KV", "K scale", "V scale")


def token_tables(life: TokenLife) -> Iterator[RenderableType]:
    """Yield what `kvtrace show` prints, top to bottom."""
    emulated = " (EMULATED)" if life.emulated else ""
    yield Text(f"Token {life.position} of request {life.request_id}{emulated}", style="bold")
    for one in life.passes:
        yield _facts(one)
        yield _layers(one, stores_recorded=life.stores_recorded)
        if any(layer.problems for layer in one.layers):
            yield _problems(one)
        yield Text(f"afterwards: {one.end}")
    for note in life.notes:
        yield Text(note)
    if not life.stores_recorded:
        yield Text(
            "Stores were not recorded, so this says what entered and not what was written; record "
            "with --record writes."
        )


def _facts(one: TokenPass) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column()
    grid.add_column(overflow="fold")
    mode = f", graph mode {one.graph_mode}" if one.graph_mode else ""
    rank = f" ({one.rank})" if one.rank else ""
    grid.add_row("process", f"{one.process_id}{rank}")
    grid.add_row("step", f"{one.step_stamp} ({one.step_kind}{mode})")
    grid.add_row("row", f"{one.row}{_of_rows(one)}")
    grid.add_row("launched", one.launched)
    if one.expected_slot is not None:
        place = f"KV block {one.kv_block_id}, offset {one.offset}, KV group {one.kv_group}"
        grid.add_row("expected slot", f"{one.expected_slot} ({place})")
    return grid


def _of_rows(one: TokenPass) -> str:
    if one.rows is None:
        return ""
    padded = f", {one.padded_rows} with padding" if one.padded_rows is not None else ""
    return f" of {one.rows}{padded}"


def _layers(one: TokenPass, *, stores_recorded: bool) -> Table:
    parts = _parts(one)
    table = Table(box=None, padding=(0, 1), pad_edge=False, header_style="bold")
    table.add_column("layer", justify="right")
    table.add_column("launch", no_wrap=True)
    table.add_column("entered us", justify="right")
    for part in parts:
        table.add_column(f"{part} address", justify="right", no_wrap=True)
    if parts:
        table.add_column("slot", justify="right")
    table.add_column("", no_wrap=True)
    for layer in one.layers:
        cells = [
            "?" if layer.layer_index is None else str(layer.layer_index),
            layer.launch,
            "-" if layer.entered_us is None else f"{layer.entered_us:.3f}",
            *(_address(layer, part) for part in parts),
        ]
        if parts:
            cells.append(", ".join(map(str, layer.written_slots)) or "-")
        table.add_row(*cells, _state(layer, stores_recorded=stores_recorded))
    return table


def _problems(one: TokenPass) -> Text:
    """Say what is wrong in which layers; those with the same trouble share a line."""
    layers: dict[tuple[str, ...], list[int | None]] = {}
    for layer in one.layers:
        if layer.problems:
            layers.setdefault(layer.problems, []).append(layer.layer_index)
    lines = (
        f"{', '.join(problems)} in layer{'s' if len(found) > 1 else ''} {_listed(found)}"
        for problems, found in layers.items()
    )
    return Text("\n".join(lines), style="bold red")


def _listed(layers: list[int | None]) -> str:
    """Shorten a list of layers: `0..6, 8`; one that is not known is `?`."""
    runs: list[tuple[int, int]] = []
    for index in sorted(index for index in layers if index is not None):
        if runs and index == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], index)
        else:
            runs.append((index, index))
    known = [str(first) if first == last else f"{first}..{last}" for first, last in runs]
    return ", ".join([*known, *("?" for index in layers if index is None)])


def _parts(one: TokenPass) -> list[str]:
    found = {part for layer in one.layers for part in layer.addresses}
    return [part for part in _PART_ORDER if part in found] + sorted(found - set(_PART_ORDER))


def _address(layer: LayerWrite, part: str) -> str:
    return f"{layer.addresses[part]:#x}" if part in layer.addresses else "-"


def _state(layer: LayerWrite, *, stores_recorded: bool) -> Text:
    if layer.problems:
        return Text("wrong", style="bold red")
    if not stores_recorded:
        return Text("entered" if layer.entered_us is not None else "not entered")
    return Text("ok" if layer.addresses else "no write recorded")
