"""Pictures of a run as Vega-Lite specifications, each with a caption and a text for readers."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import cycle

import altair as alt

from kvtrace_cli.analysis.rank_model import process_title
from kvtrace_cli.analysis.report_model import HeatMap, Mark, SlotMap, Stretch, Timeline
from kvtrace_cli.reports.cells import count
from kvtrace_cli.reports.html.blocks import Chart
from kvtrace_cli.reports.html.side import Side
from kvtrace_cli.reports.html.theme import BAD, CATEGORIES, HEAT_SCHEME, finished

_ENTRIES = "Block entries say when blocks began, not how long a kernel ran."
_HEAT_MEANING = (
    "From a layer's first block entry to the next layer's, in us on the GPU globaltimer: "
    "attention, MLP and all else that ran between them, so not the cache kernel's own time. The "
    "last layer has no next."
)
_MAP_MEANING = (
    "Each cell is a slot, with the row that wrote it last in the whole run, in all layers "
    "together. A red frame is a slot that the audit has a finding of. Behind them, the KV block: "
    "held by a request at some time, the null block, or written though none held it."
)
_ZOOM = "Ctrl and the wheel zoom in time, a double click resets."
_LEAST_HEIGHT, _MOST_HEIGHT = 120, 300
_LAYER_HEIGHT = 24
# Of a scale, in its unit: one without extent cannot be drawn.
_LEAST_EXTENT = 0.001
_CELL_HEIGHT = 15
_MOST_MAP_HEIGHT = 480
# Widths in pixels: so many KV blocks fit on a phone, more are scrolled.
_PHONE_BLOCKS = 24
_LEAST_CELL = 14
_MOST_CELL = 64
_AXIS_WIDTH = 120
_BLOCK_STATES = {
    "held": "var(--held)",
    "null block": "var(--null-block)",
    "held by no request": "var(--unheld)",
}


@dataclass(frozen=True)
class Scales:
    """What the same pictures of two runs share, so that they can be held side by side."""

    span_ms: float
    low_us: float
    high_us: float

    @classmethod
    def of(cls, sides: Sequence[Side]) -> "Scales":
        """Return scales that hold all sides; never empty."""
        pictures = [one for side in sides for one in side.pictures.by_rank]
        timelines = [one.timeline for one in pictures if one.timeline]
        heat_maps = [one.heat_map for one in pictures if one.heat_map]
        low = min((heat_map.low_us for heat_map in heat_maps), default=0.0)
        high = max((heat_map.high_us for heat_map in heat_maps), default=0.0)
        return cls(
            span_ms=max([_LEAST_EXTENT, *(timeline.span_ms for timeline in timelines)]),
            low_us=low,
            high_us=max(high, low + _LEAST_EXTENT),
        )


def timeline_chart(timeline: Timeline, stretch: Stretch, scales: Scales) -> Chart:
    """Draw when each layer's blocks entered, replay by replay."""
    base = alt.Chart(alt.NamedData("entries"))
    colours = _colours(timeline.marks["launched"].unique())
    tooltip = [
        alt.Tooltip("pass_name:N", title="replay or step"),
        alt.Tooltip("launched:N", title="launched as"),
        alt.Tooltip("layer:Q", title="layer"),
        alt.Tooltip("begin_ms:Q", title="first block entry, ms", format=",.4f"),
        alt.Tooltip("blocks:Q", title="blocks entered", format=","),
        alt.Tooltip("step_stamp:Q", title="engine step"),
    ]
    x = alt.X(
        "begin_ms:Q",
        title="ms, GPU globaltimer",
        scale=alt.Scale(domain=[0, scales.span_ms], nice=False, padding=6),
    )
    y = alt.Y(
        "layer:Q",
        title="layer",
        scale=alt.Scale(domain=[-0.5, timeline.layers - 0.5], reverse=True, nice=False),
    ).axis(tickMinStep=1, format="d")
    color = _color("launched", colours)
    if timeline.mark is Mark.POINT:
        drawn = base.mark_circle(size=16, opacity=1).encode(x, y, color, tooltip=tooltip)
    else:
        # Those next to each other differ, or many in a row would be one area.
        shade = alt.condition("datum.pass_number % 2", alt.value(1), alt.value(0.45))
        drawn = base.mark_rule(strokeWidth=1.2).encode(
            x, y, color, x2="end_ms:Q", y2="last_layer:Q", opacity=shade, tooltip=tooltip
        )
    zoom = alt.selection_interval(
        bind="scales", encodings=["x"], zoom="wheel![event.ctrlKey]", translate=False
    )
    return Chart(
        title="Block entries, replay by replay",
        legend=tuple(colours.items()),
        spec=finished(drawn.add_params(zoom), _height(timeline.layers)),
        data={"entries": timeline.marks.to_dict(as_series=False)},
        alt=_timeline_alt(timeline),
        caption=(_timeline_caption(timeline), f"{_ENTRIES} {_ZOOM}", *_left_out(stretch)),
    )


def _timeline_alt(timeline: Timeline) -> str:
    return (
        f"Block entries by layer over {timeline.span_ms:,.3f} ms: {count(timeline.passes)} replays "
        f"and steps of up to {count(timeline.layers)} layers."
    )


def _timeline_caption(timeline: Timeline) -> str:
    if timeline.mark is Mark.POINT:
        return (
            "One dot a layer of a replay or step: when the first block of its launch entered, from "
            "the first of all."
        )
    shown = (
        ""
        if timeline.shown_passes == timeline.passes
        else f" The first {count(timeline.shown_passes)} of {count(timeline.passes)} are drawn."
    )
    return (
        "One line a replay or step, from the first entry of its first layer to that of its last: "
        f"its launches are too many for a dot each.{shown}"
    )


def _left_out(stretch: Stretch) -> tuple[str, ...]:
    """Say which launches are pictured and which are not."""
    process = process_title(stretch.process_id, {stretch.process_id: stretch.rank})
    where = f"{process}, context {stretch.context_index}"
    what = "the measured requests" if stretch.measured else "the whole life: none was measured"
    sentences = [f"Of {what}, {where}."]
    if stretch.other_contexts:
        sentences.append(
            f"{count(stretch.other_contexts)} more context(s) are not drawn: each GPU has its own "
            "clock."
        )
    if stretch.unplaced:
        sentences.append(
            f"{count(stretch.unplaced)} of {count(stretch.launches)} launches have no known layer "
            "and are left out."
        )
    return (" ".join(sentences),)


def heat_map_chart(heat_map: HeatMap, stretch: Stretch, scales: Scales) -> Chart:
    """Draw how long from each layer to the next, step by step."""
    drawn = (
        alt.Chart(alt.NamedData("cells"))
        .mark_rect()
        .encode(
            alt.X("pass_number:O", title=heat_map.column).axis(
                labelAngle=0, labelOverlap="greedy", labelSeparation=6, ticks=False
            ),
            alt.Y("layer:O", title="layer").axis(
                labelOverlap="greedy", labelSeparation=6, ticks=False
            ),
            alt.Color(
                "interval_us:Q",
                title="us to the next layer",
                scale=alt.Scale(
                    scheme=HEAT_SCHEME, domain=[scales.low_us, scales.high_us], clamp=True
                ),
            ).legend(gradientLength=160, format=",.1f"),
            tooltip=[
                alt.Tooltip("pass_number:O", title=heat_map.column),
                alt.Tooltip("layer:O", title="layer"),
                alt.Tooltip("interval_us:Q", title="us to the next layer", format=",.3f"),
            ],
        )
    )
    return Chart(
        title=f"By layer and {heat_map.column}",
        legend=(),
        spec=finished(drawn, _height(heat_map.layers)),
        data={"cells": heat_map.cells.to_dict(as_series=False)},
        alt=(
            f"Heat map of {heat_map.layers} layers by {count(heat_map.passes)} passes: median "
            f"{heat_map.median_us:.1f} us, most {heat_map.max_us:.1f} us; slowest is layer "
            f"{heat_map.slowest_layer}."
        ),
        caption=(
            _HEAT_MEANING,
            _heat_figures(heat_map),
            *_left_out(stretch),
        ),
    )


def _heat_figures(heat_map: HeatMap) -> str:
    grouped = (
        f" Each column is the median of {heat_map.grouped} in a row, of {count(heat_map.passes)}."
        if heat_map.grouped > 1
        else ""
    )
    return (
        f"Median {heat_map.median_us:,.1f} us, most {heat_map.max_us:,.1f} us; by its median layer "
        f"{heat_map.slowest_layer} takes longest. Colours span the middle 98 % of the cells; what "
        f"is beyond has the colour of the end.{grouped}"
    )


def slot_map_chart(slot_map: SlotMap) -> Chart:
    """Draw the KV blocks slot by slot, by who wrote each last."""
    blocks = sorted(slot_map.kv_blocks["kv_block_id"])
    x = alt.X("kv_block_id:O", title="KV block", scale=alt.Scale(domain=blocks)).axis(
        labelAngle=0, labelOverlap="greedy", labelSeparation=6, ticks=False
    )
    offsets = list(range(slot_map.block_size))
    y = alt.Y("offset:O", title="offset in the block, tokens", scale=alt.Scale(domain=offsets))
    y = y.axis(labelOverlap="greedy", labelSeparation=6, ticks=False)
    colours = _colours(slot_map.slots["writer"].unique())
    slots = alt.Chart(alt.NamedData("slots"))
    tooltip = [
        alt.Tooltip("kv_block_id:O", title="KV block"),
        alt.Tooltip("offset:O", title="offset"),
        alt.Tooltip("writer:N", title="written last by"),
        alt.Tooltip("position:Q", title="token position"),
        alt.Tooltip("step_stamp:Q", title="engine step"),
        alt.Tooltip("k_layers:Q", title="layers with K"),
        alt.Tooltip("v_layers:Q", title="layers with V"),
        alt.Tooltip("rows_wrote:Q", title="rows that wrote it"),
        alt.Tooltip("finding:N", title="finding"),
    ]
    drawn = alt.layer(
        alt.Chart(alt.NamedData("kv_blocks"))
        .mark_rect(stroke="var(--surface)", strokeWidth=1)
        .encode(
            x,
            _color("state", _BLOCK_STATES),
            tooltip=[
                alt.Tooltip("kv_block_id:O", title="KV block"),
                alt.Tooltip("state:N", title="state"),
            ],
        ),
        slots.mark_rect(stroke="var(--surface)", strokeWidth=1).encode(
            x, y, _color("writer", colours), tooltip=tooltip
        ),
        slots.transform_filter("isValid(datum.finding)")
        .mark_rect(fillOpacity=0, stroke=BAD, strokeWidth=2)
        .encode(x, y, tooltip=tooltip),
    ).resolve_scale(color="independent")
    present = slot_map.kv_blocks["state"].unique()
    states = {
        f"KV block: {name}": colour for name, colour in _BLOCK_STATES.items() if name in present
    }
    height = min(_MOST_MAP_HEIGHT, slot_map.block_size * _CELL_HEIGHT)
    return Chart(
        title="By who wrote them last",
        legend=(*colours.items(), *states.items()),
        spec=finished(drawn, height),
        data={
            "slots": slot_map.slots.to_dict(as_series=False),
            "kv_blocks": slot_map.kv_blocks.to_dict(as_series=False),
        },
        alt=_slot_map_alt(slot_map),
        caption=_slot_map_caption(slot_map),
        min_width=_AXIS_WIDTH + _LEAST_CELL * len(blocks) if len(blocks) > _PHONE_BLOCKS else 0,
        max_width=_AXIS_WIDTH + _MOST_CELL * len(blocks),
    )


def _slot_map_alt(slot_map: SlotMap) -> str:
    faulty = len(slot_map.slots) - slot_map.slots["finding"].null_count()
    return (
        f"Map of {count(slot_map.shown_blocks)} KV blocks of {slot_map.block_size} tokens: "
        f"{count(len(slot_map.slots))} slots were written, {count(faulty)} have a finding."
    )


def _slot_map_caption(slot_map: SlotMap) -> tuple[str, ...]:
    process = process_title(slot_map.process_id, {slot_map.process_id: slot_map.rank})
    scope = (
        f"{count(slot_map.written_blocks)} of {count(slot_map.num_blocks)} KV blocks were written, "
        f"held or are null; the others are left out. Of {process}, KV group "
        f"{slot_map.kv_group}."
    )
    lines = [_MAP_MEANING, scope]
    if slot_map.shown_blocks < slot_map.written_blocks:
        lines.append(
            f"{count(slot_map.shown_blocks)} of them are drawn: those with a finding or without a "
            "holder first."
        )
    if slot_map.other_groups:
        lines.append(
            f"{count(slot_map.other_groups)} more process(es) or KV group(s) are not drawn."
        )
    return tuple(lines)


def _height(layers: int) -> int:
    return max(_LEAST_HEIGHT, min(_MOST_HEIGHT, layers * _LAYER_HEIGHT))


def _colours(names: Iterable[str]) -> dict[str, str]:
    """Give each name a colour; they come again where there are more names."""
    ordered = sorted(names, key=lambda name: (len(name), name))
    return dict(zip(ordered, cycle(CATEGORIES), strict=False))


def _color(column: str, colours: dict[str, str]) -> alt.Color:
    """Colour by a column; the page has the legend, which then fits any width."""
    scale = alt.Scale(domain=list(colours), range=list(colours.values()))
    return alt.Color(f"{column}:N", scale=scale, legend=None)
