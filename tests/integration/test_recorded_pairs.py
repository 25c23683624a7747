"""One change at a time, recorded on a real H200, and what comparing says of each.

Provenance: tests/data/README.md. The recordings have no summary: comparing reconciles them.
"""

import json
import re
from pathlib import Path

import pytest
from junitparser import JUnitXml

from kvtrace_cli.analysis.model import Reconciliation, Verdict
from kvtrace_cli.analysis.reconcile import reconcile
from kvtrace_cli.app import main
from kvtrace_cli.dumps.recording import read_recording
from kvtrace_cli.dumps.run_dir import open_run_dir
from kvtrace_cli.errors import ExitCode

ROOT = Path(__file__).parents[2]
PAIRS = ROOT / "tests/data/h200-pairs"
DOC = (ROOT / "docs/diff.md").read_text(encoding="utf-8")
LAYERS = 40
# Replays and blocks of graph nodes in the measured request, and blocks of its plain launches:
# the prompt's 8 rows, and without graphs one row for each further token.
MEASURED = {
    "base": (7, 7 * LAYERS, 8 * LAYERS),
    "again": (7, 7 * LAYERS, 8 * LAYERS),
    "fa2": (7, 7 * LAYERS, 8 * LAYERS),
    "v1": (7, 7 * LAYERS, 8 * LAYERS),
    # Every replay is of the size 8, whatever it decodes.
    "sizes8": (7, 7 * LAYERS * 8, 8 * LAYERS),
    "nine": (8, 8 * LAYERS, 8 * LAYERS),
    "eager": (0, 0, (8 + 7) * LAYERS),
}
SAME, DIFFERS, INCONCLUSIVE = ExitCode.AGREES, ExitCode.MISMATCH, ExitCode.INCONCLUSIVE
CODES = {"same": SAME, "differs": DIFFERS, "inconclusive": INCONCLUSIVE}
# What decides but for times: these were disturbed by servers on the same card.
DECIDING = {
    "again": [],
    "fa2": [],
    "v1": [],
    "sizes8": [
        "measured request 1, nodes 1 to 40 of the graph: grid 1, then grid 8.",
        "padding rows that entered in measured requests: 0, then 1,960.",
    ],
    "eager": [
        "measured request 1: 7 replays of a 40-node graph, then 280 plain launches of grid 1."
    ],
    "nine": [
        "requests that were sent: 1 measured of 8 + 8 tokens, then 1 measured of 8 + 9 tokens."
    ],
}
SHARE = "--gpu-memory-utilization 0.2"
LISTED = {
    "again": [],
    "fa2": ["flash attention: not given, then 2."],
    "v1": [
        "model runner: v2, then v1.",
        "start-up: 120 plain launches of grid 8, then 160 plain launches of grid 8.",
    ],
    "sizes8": [
        "capture sizes: 1, 2, 4, 8, then 8.",
        "start-up: 120 plain launches of grid 4, then 0 plain launches of grid 4.",
    ],
    "eager": [
        f"engine arguments: {SHARE}, then {SHARE} --enforce-eager.",
        "start-up: 120 plain launches of grid 8, then 40 plain launches of grid 8.",
    ],
    "nine": [],
}
VERDICTS = {
    "again": "same",
    "fa2": "same",
    "v1": "same",
    "sizes8": "differs",
    "eager": "differs",
    "nine": "inconclusive",
}
EIGHTH_REPLAY = (
    "measured request 1: 7 replays of a 40-node graph, then 8 replays of a 40-node graph."
)


@pytest.fixture(autouse=True)
def width(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")


@pytest.fixture(scope="module")
def summaries(tmp_path_factory):
    """Save a baseline of each run that agrees: comparing these needs no reconciling."""
    folder = tmp_path_factory.mktemp("baselines")
    for name in MEASURED:
        saved = folder / f"{name}.json"
        assert main(["baseline", "save", str(PAIRS / name), "-o", str(saved)]) == SAME
    return folder


def reconciled(name: str) -> Reconciliation:
    return reconcile(read_recording(open_run_dir(PAIRS / name, allow_incomplete=False)))


def diff(*arguments: object) -> int:
    return main(["diff", *map(str, arguments)])


def told(capsys) -> str:
    """Return what was printed as one line, as it is wrapped at any word."""
    return " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("name", MEASURED)
def test_every_run_agrees_by_itself_and_drops_nothing(name):
    replays, graph_blocks, plain_blocks = MEASURED[name]
    result = reconciled(name)
    assert result.verdict is Verdict.AGREES
    assert result.measured is not None
    graphs, plain = result.measured.graph_nodes, result.measured.plain_launches
    assert (graphs.launches, graphs.expected_blocks, graphs.matched_blocks) == (
        replays * LAYERS,
        graph_blocks,
        graph_blocks,
    )
    assert (plain.expected_blocks, plain.matched_blocks) == (plain_blocks, plain_blocks)
    assert [(one.nodes, one.replays) for one in result.measured_graphs] == (
        [(LAYERS, replays)] if replays else []
    )
    assert sum(books.dropped for books in result.files) == 0
    life = (result.whole_life.graph_nodes, result.whole_life.plain_launches)
    assert sum(part.missing_blocks + part.unexpected_blocks for part in life) == 0


def test_there_is_a_case_for_each_recording():
    assert {path.name for path in PAIRS.iterdir()} == set(MEASURED)
    assert set(MEASURED) - {"base"} == set(DECIDING) == set(LISTED) == set(VERDICTS)


@pytest.mark.parametrize("name", VERDICTS)
def test_what_differs_and_what_decides(name, capsys):
    assert diff(PAIRS / "base", PAIRS / name, "--json", "--no-times") == CODES[VERDICTS[name]]
    document = json.loads(capsys.readouterr().out)
    assert document["verdict"] == VERDICTS[name]
    found = [(one["text"], one["decides"]) for one in document["differences"]]
    assert [text for text, decides in found if decides] == DECIDING[name]
    assert [text for text, decides in found if not decides] == LISTED[name]
    differing = {one["rule"] for one in document["differences"]}
    assert not differing & set(document["checks"])


@pytest.mark.parametrize("name", VERDICTS)
def test_with_times_only_the_run_without_graphs_is_slower(name, summaries, capsys):
    sides = (summaries / f"{side}.json" for side in ("base", name))
    assert diff(*sides, "--json") == CODES[VERDICTS[name]]
    document = json.loads(capsys.readouterr().out)
    assert document["verdict"] == VERDICTS[name]
    slower = [one["rule"] for one in document["differences"] if one["aspect"] == "time"]
    figures = ["first-to-last-layer", "gap-to-the-next", "layer-to-layer"]
    assert slower == (figures if name == "eager" else [])
    if VERDICTS[name] == "inconclusive":
        assert document["times"] == []
        return
    assert {tuple(one["samples"]) for one in document["times"]} == {(7, 7), (6, 6), (1, 1)}
    assert ("each-layer" in document["checks"]) == (name != "eager")


def test_the_first_place_is_in_the_last_line_and_fits_80_columns(capsys):
    assert diff(PAIRS / "base", PAIRS / "eager") == DIFFERS
    captured = capsys.readouterr()
    assert captured.err.count("so its recording is reconciled") == 2
    assert all(len(line) <= 80 for line in captured.out.splitlines())
    out = " ".join(captured.out.split())
    assert f"differs: {DECIDING['eager'][0]} And 3 more." in out
    assert f"engine arguments {SHARE} {SHARE} --enforce-eager" in out


def test_the_example_in_the_docs_is_what_is_printed(monkeypatch, capsys):
    (command, shown), *others = re.findall(
        r"^\$ kvtrace (diff .+)\n((?:(?!```).*\n)+)```", DOC, re.MULTILINE
    )
    assert not others
    monkeypatch.chdir(ROOT)
    assert main(command.split()) == DIFFERS
    printed = [line.rstrip() for line in capsys.readouterr().out.strip().splitlines()]
    assert shown.splitlines() == printed


def test_one_prefill_on_each_side_has_no_interval(summaries, capsys):
    """The single prefill of the second run took longer: of one sample nothing can be concluded."""
    assert diff(summaries / "base.json", summaries / "again.json") == SAME
    rows = [line for line in capsys.readouterr().out.splitlines() if line.endswith("1, 1")]
    assert len(rows) == 2
    assert all("too few samples" in row and ".." not in row for row in rows)


def test_one_token_more_is_another_request_until_it_is_allowed(capsys):
    sides = PAIRS / "base", PAIRS / "nine"
    assert diff(*sides) == INCONCLUSIVE
    out = told(capsys)
    assert f"inconclusive: {DECIDING['nine'][0]}" in out
    assert "--allow requests" in out
    assert diff(*sides, "--allow", "requests", "--json") == DIFFERS
    differences = json.loads(capsys.readouterr().out)["differences"]
    assert [one["text"] for one in differences if one["decides"]] == [EIGHTH_REPLAY]
    assert diff(*reversed(sides), "--allow", "requests") == DIFFERS
    assert (
        "differs: measured request 1: 8 replays of a 40-node graph, then 7 replays of a "
        "40-node graph." in told(capsys)
    )


def test_a_saved_baseline_tells_the_runs_apart(summaries, capsys):
    baseline = summaries / "base.json"
    assert diff(baseline, PAIRS / "again") == SAME
    assert "same: " in told(capsys)
    assert diff(baseline, PAIRS / "sizes8") == DIFFERS
    assert f"differs: {DECIDING['sizes8'][0]} And 1 more." in told(capsys)


def test_the_ci_outputs_name_the_same_first_place(summaries, tmp_path, capsys):
    sides = summaries / "base.json", summaries / "sizes8.json"
    junit, page = tmp_path / "diff.xml", tmp_path / "diff.md"
    assert diff(*sides, "--junit", junit, "--markdown", page, "--github") == DIFFERS
    first, second = DECIDING["sizes8"]

    document = JUnitXml.fromfile(str(junit))
    assert (document.failures, document.errors) == (2, 0)
    failed = {
        case.name: case.result[0].message for suite in document for case in suite if case.result
    }
    assert failed == {"course": first, "padding-rows": second}

    lines = page.read_text().splitlines()
    assert lines[0].startswith("## ❌ kvtrace diff ")
    assert lines[0].endswith(": differs")
    assert lines[2] == f"{first[0].upper()}{first[1:]} And 1 more."
    assert f"| ❌ failed | `course` | {first} |" in lines
    assert f"| ❌ failed | `padding-rows` | {second} |" in lines

    annotations = [line for line in capsys.readouterr().out.splitlines() if line.startswith("::")]
    assert [line.partition(" ")[0] for line in annotations] == ["::error"] * 2 + ["::warning"] * 2
    assert [line.rpartition("::")[2] for line in annotations] == [first, second, *LISTED["sizes8"]]


@pytest.mark.parametrize(("name", "stores"), [("base", 3760), ("v1", 1840)])
def test_both_model_runners_write_the_slots_that_were_assigned(name, stores, capsys):
    assert main(["audit", str(PAIRS / name), "--json"]) == SAME
    document = json.loads(capsys.readouterr().out)
    assert document["verdict"] == "clean"
    assert document["findings"] == []
    assert document["judged"]["expected_writes"] == stores
