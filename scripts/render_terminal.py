#!/usr/bin/env python3
"""Draw what `kvtrace reconcile` prints for the recorded H200 run, as docs/terminal.svg.

python3 scripts/render_terminal.py
"""

import io
import re
from pathlib import Path

from rich.console import CONSOLE_SVG_FORMAT, Console

from kvtrace_cli.analysis.reconcile import reconcile
from kvtrace_cli.dumps.recording import read_recording
from kvtrace_cli.dumps.run_dir import open_run_dir
from kvtrace_cli.reports.tables import reconciliation_tables

ROOT = Path(__file__).parents[1]


def main() -> None:
    """Write the picture."""
    run_dir = open_run_dir(ROOT / "tests" / "data" / "h200-fa3", allow_incomplete=False)
    console = Console(record=True, width=80, file=io.StringIO(), force_terminal=True)
    for part in reconciliation_tables(reconcile(read_recording(run_dir))):
        console.print(part)
        console.print()
    # The reader's own monospace font, so that the picture fetches nothing.
    style = re.sub(r"@font-face \{\{.*?\}\}\s*", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
    title = "kvtrace run --model Qwen3-14B"
    console.save_svg(str(ROOT / "docs" / "terminal.svg"), title=title, code_format=style)


if __name__ == "__main__":
    main()
