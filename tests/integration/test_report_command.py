"""`kvtrace report`: files, errors, and the page in a real browser."""

import builtins
import sys
from pathlib import Path

import browser
import builders
import pytest
from builders import replays, seven_replays
from rank_scenes import steps_of, tensor_ranks, write_ranks

from kvtrace_cli.app import main
from kvtrace_cli.errors import ExitCode

DATA = Path(__file__).parents[1] / "data"
WRITES = DATA / "h200-writes"
FREED = DATA / "h200-faults" / "freed-block-reused"


@pytest.fixture(autouse=True)
def width(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")


@pytest.fixture
def run(tmp_path):
    return builders.write_run(tmp_path / "run", seven_replays())


def test_it_is_written_into_the_run_directory(run, capsys):
    assert main(["report", str(run)]) == ExitCode.AGREES
    captured = capsys.readouterr()
    assert captured.out == f"{run}/report.html\n"
    assert captured.err.startswith("agrees; ")
    assert "280 of 280 graph-node blocks entered" in (run / "report.html").read_text()


def test_a_report_may_be_written_again_and_other_files_not(run, tmp_path, capsys):
    target = tmp_path / "page.html"
    for _ in range(2):
        assert main(["report", str(run), "-o", str(target)]) == ExitCode.AGREES
    target.write_text("<!doctype html><p>mine")
    capsys.readouterr()
    assert main(["report", str(run), "-o", str(target)]) == ExitCode.USAGE
    assert "no report of ours; give another -o FILE" in capsys.readouterr().err
    assert target.read_text() == "<!doctype html><p>mine"


@pytest.mark.parametrize("place", ["missing/page.html", "."])
def test_a_file_that_cannot_be_written(run, tmp_path, capsys, place):
    assert main(["report", str(run), "-o", str(tmp_path / place)]) == ExitCode.USAGE
    assert "give -o FILE" in capsys.readouterr().err


def test_a_mismatch_is_reported_and_the_report_is_done(tmp_path, capsys):
    trace = seven_replays()
    trace.lose(7)
    run = builders.write_run(tmp_path / "run", trace)
    assert main(["report", str(run)]) == ExitCode.AGREES
    assert capsys.readouterr().err.startswith("mismatch; ")


def test_an_incomplete_run_is_refused_unless_asked_for(tmp_path, capsys):
    run = builders.write_run(tmp_path / "run", seven_replays(), complete=False)
    assert main(["report", str(run)]) == ExitCode.USAGE
    assert "--allow-incomplete" in capsys.readouterr().err
    assert main(["report", str(run), "--allow-incomplete"]) == ExitCode.AGREES
    assert "INCOMPLETE" in (run / "report.html").read_text()


def test_no_run_directory(tmp_path, capsys):
    assert main(["report", str(tmp_path / "none")]) == ExitCode.USAGE
    assert "no such directory" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["altair", "jinja2", "vl_convert"])
def test_without_the_extra_it_says_what_to_install(run, capsys, monkeypatch, name):
    imported = builtins.__import__

    def refuse(wanted, *arguments, **options):
        if wanted.split(".")[0] == name:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return imported(wanted, *arguments, **options)

    for module in [one for one in sys.modules if one.startswith("kvtrace_cli.reports.html.")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setattr(builtins, "__import__", refuse)
    assert main(["report", str(run)]) == ExitCode.USAGE
    assert f"({name} is missing); install them with: pip install 'kvtrace[report]'" in (
        capsys.readouterr().err
    )


def test_a_run_beside_another(run, tmp_path, capsys):
    other = builders.write_run(tmp_path / "other", replays(20, 7))
    target = tmp_path / "both.html"
    arguments = ["report", str(run), "--against", str(other), "-o", str(target)]
    assert main(arguments) == ExitCode.AGREES
    assert capsys.readouterr().err.startswith("agrees, agrees, differs; ")
    page = target.read_text()
    assert f"<h1>{run} against {other}</h1>" in page
    assert page.count('class="chart"') == 4
    assert '<section id="diff">' in page


def test_a_run_beside_a_baseline(run, tmp_path, capsys):
    baseline = tmp_path / "baseline.json"
    assert main(["baseline", "save", str(run), "-o", str(baseline)]) == ExitCode.AGREES
    target = tmp_path / "page.html"
    arguments = ["report", str(run), "--against", str(baseline), "-o", str(target)]
    capsys.readouterr()
    assert main(arguments) == ExitCode.AGREES
    assert capsys.readouterr().err.startswith("agrees, same; ")
    assert target.read_text().count('class="chart"') == 2


def test_an_other_side_that_cannot_be_read(run, tmp_path, capsys):
    arguments = ["report", str(run), "--against", str(tmp_path / "none.json")]
    assert main(arguments) == ExitCode.USAGE
    assert "none.json: no such file or directory" in capsys.readouterr().err
    assert not (run / "report.html").exists()


PAGES = {
    "stores": (WRITES, 3),
    "findings": (FREED, 3),
    "many replays": (DATA / "h200-killed", 2),
    "no layers": (DATA / "h200-tiny", 0),
}


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    made = {}
    for name, (recorded, _) in PAGES.items():
        made[name] = folder / f"{name}.html"
        arguments = ["report", str(recorded), "--allow-incomplete", "-o", str(made[name])]
        assert main(arguments) == ExitCode.AGREES
    made["ranks"] = folder / "ranks.html"
    run = write_ranks(folder / "run", tensor_ranks(lines=steps_of(decodes=6)))
    assert main(["report", str(run), "-o", str(made["ranks"])]) == ExitCode.AGREES
    return made


@pytest.mark.browser
@pytest.mark.skipif(browser.chromium() is None, reason="Chromium is not installed")
@pytest.mark.parametrize("width", [browser.DESKTOP, browser.PHONE])
@pytest.mark.parametrize("name", PAGES)
def test_a_browser_draws_every_chart_and_asks_for_nothing(pages, name, width):
    with browser.opened(pages[name], width=width) as page:
        charts = page.locator(".chart")
        assert charts.count() == PAGES[name][1]
        for chart in charts.all():
            assert chart.get_attribute("data-drawn") == "yes", chart.inner_text()
            drawn = chart.locator("svg")
            box = drawn.bounding_box()
            assert box["width"] > 200, box
            assert box["height"] > 100, box
            assert drawn.locator(".role-mark > *").count() > 20
        assert page.complaints == []
        assert page.fetched == []
        # Only containers of charts and tables scroll sideways, never the page.
        assert page.evaluate("document.documentElement.scrollWidth") == width


@pytest.mark.browser
@pytest.mark.skipif(browser.chromium() is None, reason="Chromium is not installed")
def test_text_is_readable_in_both_colour_schemes(pages):
    colours = {}
    for scheme in ("light", "dark"):
        with browser.opened(pages["findings"], scheme=scheme) as page:
            colours[scheme] = page.evaluate(
                "() => ['color', 'backgroundColor'].map("
                "name => getComputedStyle(document.body)[name])"
            )
            label = page.locator(".chart text").first
            assert label.evaluate("text => getComputedStyle(text).fill") != "rgb(0, 0, 0)"
        assert contrast(*colours[scheme]) > 7
    assert colours["light"] != colours["dark"]


def contrast(one, other):
    """Return the contrast ratio of two CSS colours, as WCAG 2 defines it."""
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def luminance(colour):
    values = [int(part) / 255 for part in colour[4:-1].split(",")]
    linear = [
        value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in values
    ]
    return sum(share * value for share, value in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.browser
@pytest.mark.skipif(browser.chromium() is None, reason="Chromium is not installed")
@pytest.mark.parametrize("width", [browser.DESKTOP, browser.PHONE])
def test_one_rank_is_seen_at_a_time(pages, width):
    with browser.opened(pages["ranks"], width=width) as page:
        choice = page.locator("#layers .choice")
        charts = choice.locator(".chart")
        assert [chart.is_visible() for chart in charts.all()] == [True, False]
        choice.locator("select").select_option("TP1")
        assert [chart.is_visible() for chart in charts.all()] == [False, True]
        charts.nth(1).locator("svg").wait_for()
        assert charts.nth(1).locator("svg").bounding_box()["width"] > 200
        assert "process 4712 (TP1)" in choice.inner_text()
        assert page.complaints == []
        assert page.evaluate("document.documentElement.scrollWidth") == width


@pytest.mark.browser
@pytest.mark.skipif(browser.chromium() is None, reason="Chromium is not installed")
def test_the_pointer_tells_who_wrote_a_slot(pages):
    with browser.opened(pages["findings"]) as page:
        chart = page.locator("#slots .chart")
        chart.scroll_into_view_if_needed()
        # The red frames are the last marks: those of KV block 3.
        chart.locator("path[stroke='var(--bad)']").first.hover()
        tooltip = page.locator("#vg-tooltip-element.visible")
        tooltip.wait_for()
        assert "foreign-block" in tooltip.inner_text()
        assert "request 2" in tooltip.inner_text()
