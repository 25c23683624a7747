"""The page: one template, one copy of the JavaScript, and a policy that forbids all fetching."""

from base64 import b64encode
from collections.abc import Sequence
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import Final

import vl_convert
from altair import SCHEMA_VERSION
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from kvtrace_cli import __version__
from kvtrace_cli.analysis.diff_model import Diff
from kvtrace_cli.analysis.gap_model import Gap
from kvtrace_cli.reports.html import BEGINNING
from kvtrace_cli.reports.html.blocks import Section
from kvtrace_cli.reports.html.cards import cards
from kvtrace_cli.reports.html.comparison import diff_section, times_section
from kvtrace_cli.reports.html.facts import run_section
from kvtrace_cli.reports.html.gap import gap_section
from kvtrace_cli.reports.html.sections import sections
from kvtrace_cli.reports.html.side import Side

# All that the page uses of the libraries.
_SNIPPET: Final = "window.vegaEmbed = vegaEmbed;"


def render(sides: Sequence[Side], diff: Diff | None = None, gap: Gap | None = None) -> str:
    """Return the report of one run, or of two, as a self-contained HTML page.

    Args:
        sides: the run; and the one it is held against, before it.
        diff: what differs between the two, if that was found out.
        gap: what ran inside replays and between them, if a run of CUPTI tells.
    """
    environment = Environment(
        loader=PackageLoader("kvtrace_cli.reports.html"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    scripts = (_library(), _own("mount.js"))
    template = environment.get_template("report.html.j2")
    return template.render(
        beginning=Markup(BEGINNING),  # noqa: S704 - a constant of ours
        title=_title(sides, diff),
        cards=list(cards(sides, diff)),
        sections=_sections(sides, diff, gap),
        style=_own("style.css"),
        scripts=scripts,
        policy=_policy(scripts),
        version=__version__,
    )


def _title(sides: Sequence[Side], diff: Diff | None) -> str:
    if diff:
        return f"{diff.after} against {diff.before}"
    return " against ".join(side.name for side in reversed(sides))


def _sections(sides: Sequence[Side], diff: Diff | None, gap: Gap | None) -> list[Section]:
    found = [run_section(sides), *sections(sides)]
    # What was compared has both medians beside the interval of their change.
    if not (diff and diff.times):
        names = [section.anchor for section in found]
        found.insert(names.index("timeline"), times_section(sides))
    if gap:
        found.insert([section.anchor for section in found].index("slots"), gap_section(gap))
    if diff:
        found.insert(1, diff_section(diff))
    return found


@cache
def _library() -> Markup:
    """Return Vega, Vega-Lite and vega-embed in one script.

    `</script` inside a string would end it; the backslash changes nothing there.
    """
    version = ".".join(SCHEMA_VERSION.removeprefix("v").split(".")[:2])
    script = vl_convert.javascript_bundle(_SNIPPET, vl_version=version)
    return Markup(script.replace("</script", "<\\/script"))  # noqa: S704 - no input of a run


def _own(name: str) -> Markup:
    text = files(__package__ or "").joinpath("templates").joinpath(name).read_text(encoding="utf-8")
    return Markup(text)  # noqa: S704 - a file of ours


def _policy(scripts: Sequence[str]) -> str:
    """Allow these scripts and styles, and nothing else: the page cannot fetch or send anything."""
    digests = (b64encode(sha256(script.encode()).digest()).decode() for script in scripts)
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
