"""How charts look. Colours are names of the page's CSS, so that both colour schemes fit."""

from typing import Any, Final

import altair as alt

BAD: Final = "var(--bad)"
# Neighbours differ in lightness too, for readers who see fewer hues.
CATEGORIES: Final = tuple(f"var(--hue-{number})" for number in range(1, 9))
HEAT_SCHEME: Final = "viridis"

_FONT: Final = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"
_TEXT: Final = "var(--text)"
_MUTED: Final = "var(--muted)"
_LINE: Final = "var(--line)"


def finished(chart: alt.Chart | alt.LayerChart, height: int) -> dict[str, Any]:
    """Return the chart's Vega-Lite specification, as wide as its container."""
    spec: dict[str, Any] = (
        chart.properties(width="container", height=height, background="transparent")
        .configure(
            # The container has the text for readers; one more for each of thousands is noise.
            aria=False,
            font=_FONT,
            autosize=alt.AutoSizeParams(type="fit-x", contains="padding"),
            # The last label of an axis reaches beyond it.
            padding={"left": 2, "top": 4, "right": 12, "bottom": 2},
        )
        .configure_view(stroke=None)
        .configure_axis(
            labelColor=_MUTED,
            titleColor=_TEXT,
            titleFontWeight="normal",
            gridColor=_LINE,
            domainColor=_LINE,
            tickColor=_LINE,
            labelFontSize=11,
            titleFontSize=12,
        )
        .configure_legend(
            labelColor=_TEXT,
            titleColor=_TEXT,
            titleFontWeight="normal",
            orient="top",
            labelFontSize=11,
            titleFontSize=12,
        )
        .to_dict()
    )
    return spec
