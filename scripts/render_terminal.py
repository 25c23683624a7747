#!/usr/bin/env python3
"""Draw what kvtrace prints for recorded H200 runs: docs/terminal.svg and docs/audit.svg.

python3 scripts/render_terminal.py
"""

import io
import re
from collections.abc import Iterable
from pathlib import Path

from rich.console import CONSOLE_SVG_FORMAT, Console, RenderableType

from kvtrace_cli.analysis.attribution import attribute
from kvtrace_cli.analysis.audit import audit
from kvtrace_cli.analysis.reconcile import reconcile
from kvtrace_cli.analysis.steps import step_tables
from kvtrace_cli.dumps.recording import read_recording
from kvtrace_cli.dumps.run_dir import open_run_dir
from kvtrace_cli.dumps.schema import Recording
from kvtrace_cli.reports.audit_tables import audit_tables
from kvtrace_cli.reports.tables import reconciliation_tables

ROOT = Path(__file__).parents[1]


def recorded(name: str) -> Recording:
    """Read a run of tests/data."""
    return read_recording(open_run_dir(ROOT / "tests" / "data" / name, allow_incomplete=False))


def draw(name: str, title: str, parts: Iterable[RenderableType]) -> None:
    """Write docs/NAME as a terminal of 80 columns."""
    console = Console(record=True, width=80, file=io.StringIO(), force_terminal=True)
    for part in parts:
        console.print(part)
        console.print()
    # The reader's own monospace font, so that the picture fetches nothing.
    style = re.sub(r"@font-face \{\{.*?\}\}\s*", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
    console.save_svg(str(ROOT / "docs" / name), title=title, code_format=style)


def main() -> None:
    """Draw both."""
    recording = recorded("h200-writes")
    result = reconcile(recording)
    attribution = attribute(result, recording, step_tables(recording))
    title = "kvtrace run --model Qwen3-14B --record writes"
    draw("terminal.svg", title, reconciliation_tables(result, attribution))
    recording = recorded("h200-faults/freed-block-reused")
    result = reconcile(recording)
    audited = audit(recording, result, step_tables(recording))
    draw("audit.svg", "kvtrace audit run1", audit_tables(audited))


if __name__ == "__main__":
    main()
