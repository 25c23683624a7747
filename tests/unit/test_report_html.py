"""The page of a report: what it says, that it escapes, and that it fetches nothing."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import gap_scenes
import pytest
from builders import recorded, replays, request, seven_replays
from rank_scenes import recorded_ranks, tensor_ranks
from rich.table import Table as RichTable
from rich.text import Text as RichText

from kvtrace_cli.analysis.attribution import attribute
from kvtrace_cli.analysis.audit import audit
from kvtrace_cli.analysis.audit_model import AuditVerdict, Rule, RuleCount
from kvtrace_cli.analysis.diff_model import Aspect, Diff, Difference, DiffVerdict, TimeComparison
from kvtrace_cli.analysis.gap import gap
from kvtrace_cli.analysis.reconcile import reconcile
from kvtrace_cli.analysis.report_frames import pictures
from kvtrace_cli.analysis.steps import step_tables
from kvtrace_cli.dumps.recording import read_recording
from kvtrace_cli.dumps.run_dir import open_run_dir
from kvtrace_cli.reports.html.blocks import Cell, Table, from_rich
from kvtrace_cli.reports.html.charts import Scales
from kvtrace_cli.reports.html.comparison import diff_section, outcome, times_section
from kvtrace_cli.reports.html.facts import run_section
from kvtrace_cli.reports.html.page import render
from kvtrace_cli.reports.html.side import Side

NASTY = "<script>alert('x')</script>&\"{{ 1 }}"
SAME = Diff(DiffVerdict.SAME, (), (), (), ("one", "two"), "a", "b", emulated=False)


class Page(HTMLParser):
    """Collects elements, and the text outside of scripts and styles."""

    def __init__(self, html):
        super().__init__()
        self.elements, self.text, self._inside = [], "", ""
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        self._inside = tag

    def handle_endtag(self, _tag):
        self._inside = ""

    def handle_data(self, data):
        if self._inside not in ("script", "style"):
            self.text += data

    def of(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]


def side(tmp_path, *traces, name="run1", **options):
    return side_of(recorded(tmp_path, *traces, **options), name)


def side_of(recording, name="run1"):
    result, tables = reconcile(recording), step_tables(recording)
    attribution = attribute(result, recording, tables)
    judged = audit(recording, result, tables)
    drawn = pictures(recording, result, tables, attribution, judged)
    return Side(name, recording.manifest, recording.requests, result, attribution, judged, drawn)


def page(*sides, diff=None):
    return Page(render(sides, diff))


def specs(html):
    found = re.findall(r'<script type="application/json">(.*?)</script>', html, flags=re.DOTALL)
    return [json.loads(one) for one in found]


def facts(manifest, *requests):
    section = run_section([Side("r", manifest, requests, *[None] * 4)])
    return {name.text: value.text for name, value in section.parts[0].blocks[0].rows}


def test_the_verdict_and_its_reasons_come_first(tmp_path):
    trace = seven_replays()
    trace.lose(7)
    shown = page(side(tmp_path, trace))
    assert shown.text.index("mismatch") < shown.text.index("What was run")
    assert "1 of 280 graph-node blocks have no event." in shown.text
    assert "EMULATED" not in shown.text


def test_findings_of_the_audit_are_a_verdict_of_their_own(tmp_path):
    one = side(tmp_path, seven_replays())
    rules = (RuleCount(Rule.WRONG_SLOT, 1200, 3, 2, 1, 1),)
    audited = replace(one.audit, rules=rules, verdict=AuditVerdict.FINDINGS)
    html = render([replace(one, audit=audited)])
    assert html.count('class="verdict ') == 2
    assert html.index('class="verdict agrees"') < html.index('class="verdict mismatch"')
    assert "<p>1,200 wrong-slot</p>" in html


def test_an_emulated_and_an_incomplete_run_are_marked(tmp_path):
    shown = page(side(tmp_path, seven_replays(), manifest={"engine": "emulator"}, complete=False))
    assert "EMULATED" in shown.text
    assert "INCOMPLETE" in shown.text


def test_what_comes_from_the_run_is_escaped(tmp_path):
    manifest = {
        "engine": NASTY,
        "command": [NASTY],
        "config": {"model": NASTY},
        "outcome": {"status": NASTY, "error": NASTY},
    }
    one = side(tmp_path, seven_replays(), name=NASTY, manifest=manifest)
    noted = replace(one, result=replace(one.result, notes=(NASTY,), reasons=(NASTY,)))
    html = render([noted])
    assert "alert('x')</script>" not in html
    assert Page(html).text.count(NASTY) >= 6


def test_text_in_a_chart_cannot_end_its_script(tmp_path):
    one = side(tmp_path, seven_replays())
    (whole,) = one.pictures.by_rank
    marks = whole.timeline.marks.with_columns(pass_name=whole.timeline.marks["pass_name"] + NASTY)
    nasty = replace(whole, timeline=replace(whole.timeline, marks=marks))
    drawn = replace(one.pictures, by_rank=(nasty,))
    html = render([replace(one, pictures=drawn)])
    assert "alert('x')</script>" not in html
    assert specs(html)[0]["data"]["entries"]["pass_name"][0] == "decode step 1" + NASTY


def test_nothing_is_fetched(tmp_path):
    shown = page(side(tmp_path, seven_replays()))
    fetching = [
        value
        for _, attributes in shown.elements
        for name, value in attributes.items()
        if name in ("src", "href", "action", "data", "poster") and not value.startswith("#")
    ]
    assert fetching == []
    policy = next(one["content"] for one in shown.of("meta") if "http-equiv" in one)
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe-eval" not in policy
    assert not shown.of("link")
    style = re.search(
        r"<style>(.*?)</style>", render([side(tmp_path / "b", seven_replays())]), re.DOTALL
    )
    assert "url(" not in style[1]
    assert "@import" not in style[1]


def test_the_javascript_is_there_once_however_many_charts(tmp_path):
    html = render([side(tmp_path / "a", seven_replays()), side(tmp_path / "b", seven_replays())])
    assert len(specs(html)) == 4
    assert html.count("window.vegaEmbed=") == 1
    assert len(html) < 2_000_000


def test_links_and_headings_lead_to_the_sections(tmp_path):
    shown = page(side(tmp_path, seven_replays()))
    anchors = {one["id"] for one in shown.of("section") if "id" in one}
    assert {one["href"][1:] for one in shown.of("a")} == anchors
    assert len(shown.of("h1")) == 1
    assert len(shown.of("h2")) == len(anchors)


def test_charts_and_tables_can_be_read_aloud(tmp_path):
    shown = page(side(tmp_path, seven_replays()))
    images = [one["aria-label"] for one in shown.of("div") if one.get("role") == "img"]
    assert images == [
        "Block entries by layer over 55.800 ms: 7 replays and steps of up to 40 layers.",
        "Heat map of 39 layers by 7 passes: median 200.0 us, most 200.0 us; slowest is layer 0.",
    ]
    assert {one["scope"] for one in shown.of("th")} == {"row", "col"}
    regions = [one for one in shown.of("div") if one.get("class") == "scroll"]
    assert all(one["tabindex"] == "0" and one["aria-label"] for one in regions)


def test_without_pictures_it_says_why(tmp_path):
    text = page(side(tmp_path, requests=[])).text
    assert "No block of a recorded launch entered, so there is nothing to draw." in text
    assert "No replay or step with two layers that follow each other was recorded." in text
    assert "Stores were not recorded" in text
    assert "No audit was possible." in text


def test_what_is_left_out_of_a_picture_is_said(tmp_path):
    html = render([side(tmp_path, replays(20, 330))])
    assert "its launches are too many for a dot each." in html
    assert "Each column is the median of 3 in a row, of 330." in html


def test_two_runs_share_their_scales(tmp_path):
    sides = [side(tmp_path / "a", seven_replays()), side(tmp_path / "b", replays(40, 2))]
    html = render(sides)
    timelines = [one["spec"] for one in specs(html) if "entries" in one["data"]]
    assert [one["encoding"]["x"]["scale"]["domain"] for one in timelines] == [[0, 55.8]] * 2
    assert Scales.of([]).low_us < Scales.of([]).high_us


def test_medians_of_two_runs_stand_side_by_side(tmp_path):
    sides = [side(tmp_path / "a", replays(40, 7)), side(tmp_path / "b", replays(40, 8))]
    table = times_section(sides).parts[0].blocks[0]
    assert table.head[2:5] == ("before, ms", "after, ms", "change")
    row = [cell.text for cell in table.rows[0]]
    assert row[2:6] == ["7.800", "7.800", "+0.0 %", "7 / 8"]


def test_a_figure_that_only_one_run_has(tmp_path):
    sides = [side(tmp_path / "a", replays(40, 7)), side(tmp_path / "b", replays(20, 8))]
    rows = times_section(sides).parts[0].blocks[0].rows
    assert [cell.text for cell in rows[0]][2:6] == ["7.800", "-", "-", "7 / -"]


def test_differences_are_shown_with_what_decides(tmp_path):
    decisive = Difference(
        Aspect.STRUCTURE, "node-count", "graph 1", "40 nodes", NASTY, decides=True
    )
    listed = Difference(Aspect.COMPARABILITY, "setting-x", "x", "1", "2", decides=False)
    slower = TimeComparison(
        "gap", "ms", "GPU globaltimer", 1.0, 1.5, 50.0, 40.0, 60.0, (7, 8), regressed=True
    )
    diff = replace(
        SAME, verdict=DiffVerdict.DIFFERS, differences=(decisive, listed), times=(slower,)
    )
    html = render([side(tmp_path, seven_replays())], diff)
    text = Page(html).text
    assert "b against a" in text
    assert text.index("differs") < text.index("What was run")
    assert "graph 1: 40 nodes, then " in text
    assert "+40.0 .. +60.0 %" in text
    assert '<section class="verdict mismatch" aria-label="Verdict: b against a">' in html
    assert "alert('x')</script>" not in html


@pytest.mark.parametrize(
    ("samples", "interval"),
    [
        ((5, 5), "+40.0 .. +60.0 %"),
        ((4, 100), "too few samples"),
        ((100, 1), "too few samples"),
    ],
)
def test_a_figure_of_few_samples_has_no_interval(samples, interval):
    """Of one sample it would be the change itself, which looks as sure as can be."""
    figure = TimeComparison(
        "prefill", "ms", "GPU globaltimer", 1.0, 1.5, 50.0, 40.0, 60.0, samples, regressed=False
    )
    blocks = diff_section(replace(SAME, times=(figure,))).parts[0].blocks
    (table,) = [one for one in blocks if isinstance(one, Table)]
    (row,) = table.rows
    assert row[table.head.index("from .. to")].text == interval
    assert row[table.head.index("change")].text == "+50.0 %"


@pytest.mark.parametrize(
    ("differences", "said"),
    [
        ((), "2 rules looked at, no difference that decides."),
        ((False,), "2 rules looked at, no difference that decides, 1 listed only."),
        ((True, False, True), "w: 1, then 2. 1 more decide."),
    ],
)
def test_the_outcome_of_a_comparison(differences, said):
    found = tuple(
        Difference(Aspect.TIME, "r", "w", "1", "2", decides=decides) for decides in differences
    )
    assert outcome(replace(SAME, differences=found)) == said


def test_a_table_of_the_terminal_keeps_its_words_and_faults():
    table = RichTable(title="Title")
    table.add_column("name")
    table.add_column("count", justify="right")
    table.add_row("a", RichText("3", style="bold red"))
    table.add_row("", RichText("0"))
    found = from_rich(table)
    assert (found.title, found.head, found.numeric) == ("Title", ("name", "count"), (False, True))
    assert found.rows == ((Cell("a"), Cell("3", fault=True)), (Cell(""), Cell("0")))


def test_the_facts_of_two_runs_stand_side_by_side():
    sides = [
        Side("one", {"created": "today"}, (), *[None] * 4),
        Side("two", {"config": {"model": "M"}, "command": ["a", "b c"]}, (), *[None] * 4),
    ]
    table, command = run_section(sides).parts[0].blocks
    assert table.head == ("", "before", "after")
    rows = {name.text: (one.text, other.text) for name, one, other in table.rows}
    assert (rows["run"], rows["model"], rows["created"]) == (
        ("one", "two"),
        ("-", "M"),
        ("today", "-"),
    )
    assert "GPU" not in rows
    assert (command.summary, command.text) == ("Command of two", "a 'b c'")


def test_the_facts_of_a_run():
    manifest = {
        "engine": "vllm",
        "versions": {"vllm": "0.26.0", "cuda_driver": None},
        "gpus": [{"name": "NVIDIA H200", "driver_version": "580", "compute_capability": "9.0"}],
        "config": {"model": "M", "recording": {"record": "writes", "steps": True}},
    }
    found = facts(manifest, request(0, "warmup"), request(1), request(2))
    assert found == {
        "run": "r",
        "model": "M",
        "engine": "vllm 0.26.0",
        "GPU": "NVIDIA H200, driver 580, compute capability 9.0",
        "versions": "vllm 0.26.0",
        "requests": "2 measured (6 prompt tokens, 16 returned), 1 to warm up",
        "recorded": "block entries and each block's stores, engine steps",
    }


@pytest.mark.parametrize(
    ("manifest", "name", "value"),
    [
        ({"subcommand": "exec"}, "engine", "started by `kvtrace exec`"),
        ({"config": {"recording": {"enabled": False}}}, "recorded", "nothing"),
        ({"config": {"recording": {"steps": False}}}, "recorded", "block entries, no engine steps"),
        ({"config": [], "gpus": 5, "versions": None}, "requests", "none recorded"),
    ],
)
def test_the_facts_of_other_runs(manifest, name, value):
    assert facts(manifest)[name] == value


def test_what_ran_is_stacked_to_the_span(tmp_path):
    blocks = recorded(
        tmp_path / "blocks", gap_scenes.launched(), manifest=gap_scenes.SANITIZER_MANIFEST
    )
    seen = gap_scenes.seen()
    for number in range(9):
        seen.kernel(f"kernel_{number}{NASTY}", 210_000, 211_000, **gap_scenes.in_replay(1))
    path = gap_scenes.write_seen(tmp_path / "seen", seen)
    activities = read_recording(open_run_dir(path, allow_incomplete=False))
    split = gap(reconcile(blocks), blocks, activities, ("a", "b"))
    one = side(tmp_path / "side", gap_scenes.launched())
    html = render([one], None, split)
    assert "<script>alert" not in html
    assert "3 replays of 2 target nodes" in Page(html).text
    (drawn,) = [spec["data"]["parts"] for spec in specs(html) if "parts" in spec["data"]]
    lengths = {"inside": 0.0, "between": 0.0}
    for span, ms in zip(drawn["span"], drawn["ms"], strict=True):
        lengths[span] += ms
    assert lengths == pytest.approx({"inside": 0.110, "between": 0.090})
    assert "all others" in drawn["part"]


def test_why_nothing_could_be_split_is_said(tmp_path):
    blocks = recorded(tmp_path / "blocks", gap_scenes.launched())
    split = gap(reconcile(blocks), blocks, blocks, ("a", "b"))
    text = Page(render([side(tmp_path / "side", gap_scenes.launched())], None, split)).text
    assert "inconclusive: a and, by CUPTI, b." in text
    assert "The second run was not observed by CUPTI" in text


def test_ranks_are_chosen_from_and_one_is_seen_at_a_time(tmp_path):
    shown = page(side_of(recorded_ranks(tmp_path, tensor_ranks())))
    assert len([one for one in shown.of("div") if one.get("class") == "choice"]) == 2
    names = [one["aria-label"] for one in shown.of("div") if one.get("class") == "option"]
    assert names == ["rank TP0", "rank TP1"] * 2
    assert "Of the measured requests, process 4712 (TP1), context 0." in shown.text


def test_a_single_rank_is_not_to_be_chosen(tmp_path):
    shown = page(side(tmp_path, seven_replays()))
    assert not [one for one in shown.of("div") if one.get("class") == "choice"]
