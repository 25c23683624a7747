#!/usr/bin/env python3
"""Take the pictures of docs/report.md: reports of recorded runs in a real browser.

Needs Chromium (`apt-get install chromium`) and the dev group.
Usage: scripts/screenshot_report.py [FOLDER], by default docs.
"""

import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests")]

import browser  # noqa: E402 - found by the line above

from kvtrace_cli.app import main  # noqa: E402 - the same

MARGIN = 16


@dataclass(frozen=True)
class Picture:
    """The part of a run's report from one element to another, both CSS selectors.

    `options` are those of `kvtrace report`.
    """

    run: str
    first: str
    last: str
    width: int = browser.DESKTOP
    scheme: str = "light"
    options: tuple[str, ...] = ()


PICTURES = {
    "report": Picture("h200-writes", "body > header", "#reconciliation"),
    "report-charts": Picture("h200-writes", "#timeline", "#slots"),
    "report-findings": Picture("h200-faults/freed-block-reused", "#slots", "#audit", scheme="dark"),
    "report-gap": Picture(
        "h200-gap/blocks", "#gap", "#gap", options=("--gap", "tests/data/h200-gap/cupti")
    ),
    "report-phone": Picture("h200-writes", "#timeline", "#slots", browser.PHONE),
}


def take(out: Path, work: Path) -> None:
    """Write one PNG for each of PICTURES into `out`."""
    for name, picture in PICTURES.items():
        page_file = work / f"{name}.html"
        asked = ("report", f"tests/data/{picture.run}", *picture.options, "-o", str(page_file))
        if main(list(asked)):
            sys.exit(1)
        with browser.opened(page_file, width=picture.width, scheme=picture.scheme) as page:
            first, last = (
                page.locator(part).bounding_box() for part in (picture.first, picture.last)
            )
            top = max(0, first["y"] - MARGIN)
            bottom = last["y"] + last["height"] + MARGIN
            clip = {"x": 0, "y": top, "width": picture.width, "height": bottom - top}
            page.screenshot(path=out / f"{name}.png", full_page=True, clip=clip)
        print(out / f"{name}.png")


if __name__ == "__main__":
    # The reports name their runs as they are given: no path of this machine in a picture.
    os.chdir(ROOT)
    with tempfile.TemporaryDirectory() as folder:
        take(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs", Path(folder))
