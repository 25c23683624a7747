"""A page in a real headless Chromium, without a network."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

DESKTOP, PHONE = 1280, 390
_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_HEIGHTS = {DESKTOP: 900, PHONE: 844}


def chromium() -> str | None:
    """Return where Chromium is; None if there is none."""
    return next((path for path in map(shutil.which, _NAMES) if path), None)


@contextmanager
def opened(file: Path, *, width: int = DESKTOP, scheme: str = "light") -> Iterator[Any]:
    """Open a file and wait until its charts were drawn or failed.

    The page has `complaints` (console errors, errors of scripts) and `fetched` (every URL asked for
    but the file's own).
    """
    from playwright.sync_api import sync_playwright  # noqa: PLC0415 - only where Chromium is

    url = file.resolve().as_uri()
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        context = started.new_context(
            viewport={"width": width, "height": _HEIGHTS[width]},
            color_scheme=scheme,
            offline=True,
            device_scale_factor=1,
            has_touch=width == PHONE,
            is_mobile=width == PHONE,
        )
        page = context.new_page()
        page.complaints, page.fetched = [], []
        page.on(
            "console",
            lambda said: said.type in ("error", "warning") and page.complaints.append(said.text),
        )
        page.on("pageerror", lambda error: page.complaints.append(str(error)))
        page.on("request", lambda asked: asked.url != url and page.fetched.append(asked.url))
        page.goto(url)
        page.wait_for_function(
            "[...document.querySelectorAll('.chart')].every(chart => chart.dataset.drawn)"
            " && document.body.dataset.ready"
        )
        yield page
        started.close()
