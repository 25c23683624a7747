"""`kvtrace gap` on whole run directories, and `kvtrace run --observer cupti` without a GPU."""

import json

import gap_scenes as scenes
import pytest
from builders import TARGET

from kvtrace_cli import app
from kvtrace_cli.errors import ExitCode


@pytest.fixture
def pair(tmp_path):
    return [str(path) for path in scenes.write_pair(tmp_path)]


def test_the_tables(pair, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert app.main(["gap", *pair]) == ExitCode.AGREES
    out = capsys.readouterr().out
    assert "3 replays of 2 target nodes, 2 x (1, 1, 1)" in out
    rows = {cells[0]: cells[1:] for line in out.splitlines() if (cells := line.split())}
    assert rows["copies"][:5] == ["1", "0.020", "0.020", "22.2", "%"]
    assert rows["memsets"][:5] == ["1", "0.010", "0.010", "9.1", "%"]
    assert rows["paired"] == ["3", "replays", "of", "both", "runs"]
    assert max(map(len, out.splitlines())) <= 80


def test_long_gaps_are_set_apart_where_there_are_any(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    seen = scenes.waits_before(scenes.seen(replays=6), 5, 1000)
    pair = [str(path) for path in scenes.write_pair(tmp_path, [scenes.launched(replays=6)], [seen])]
    assert app.main(["gap", *pair]) == ExitCode.AGREES
    out = capsys.readouterr().out
    inside, between = out.split("Between replays: ")
    assert "usual" not in inside
    (idle,) = [line.split() for line in between.splitlines() if line.startswith("idle")]
    assert idle[1:8] == ["0", "0.000", "0.040", "82.8", "%", "44.4", "%"]
    said = " ".join(between.split())
    assert "without the 1 of 5 spans that are longer than 1.5 x the median" in said
    assert "note: Between replays, 1 of 5 spans are long" in said
    assert max(map(len, out.splitlines())) <= 80

    assert app.main(["gap", *pair, "--json"]) == ExitCode.AGREES
    document = json.loads(capsys.readouterr().out)
    (graph,) = document["graphs"]
    assert [graph[span]["long_spans"]["count"] for span in ("inside", "between")] == [0, 1]
    assert graph["between"]["parts"][-1]["usual_percent"] == pytest.approx(100 * 40 / 90)

    page = tmp_path / "report.html"
    assert app.main(["report", pair[0], "--gap", pair[1], "-o", str(page)]) == ExitCode.AGREES
    capsys.readouterr()
    assert "split as all spans of at most 1.5 x the median" in page.read_text()
    assert "idle is 82.8 % of all spans and 44.4 % of the others" in page.read_text()


def test_many_kernels_become_one_row(tmp_path, capsys):
    seen = scenes.seen()
    for number in range(20):
        seen.kernel(
            f"kernel_{number:02}", 210_000 + number, 210_001 + number, **scenes.in_replay(1)
        )
    pair = scenes.write_pair(tmp_path, None, [seen])
    assert app.main(["gap", *map(str, pair)]) == ExitCode.AGREES
    assert "11 other kernels" in capsys.readouterr().out


def test_the_document(pair, capsys):
    assert app.main(["gap", *pair, "--json"]) == ExitCode.AGREES
    document = json.loads(capsys.readouterr().out)
    assert (document["schema_version"], document["verdict"]) == (1, "paired")
    assert [document["sanitizer_run"], document["cupti_run"]] == pair
    (graph,) = document["graphs"]
    target = next(part for part in graph["inside"]["parts"] if part["name"] == TARGET)
    assert target["kind"] == "kernel"
    assert target["share_ms"] == pytest.approx(0.02)
    assert sum(part["percent"] for part in graph["between"]["parts"]) == pytest.approx(100)


def test_runs_that_did_not_do_the_same_are_inconclusive(tmp_path, capsys):
    pair = scenes.write_pair(tmp_path, None, [scenes.seen(nodes=3)])
    assert app.main(["gap", *map(str, pair)]) == ExitCode.INCONCLUSIVE
    assert "inconclusive" in capsys.readouterr().out


def test_a_directory_that_is_no_run_is_refused(pair, tmp_path, capsys):
    assert app.main(["gap", pair[0], str(tmp_path)]) == ExitCode.USAGE
    assert "not a run directory" in capsys.readouterr().err


def test_reconcile_of_a_run_that_cupti_observed(pair, capsys):
    assert app.main(["reconcile", pair[1]]) == ExitCode.INCONCLUSIVE
    out = " ".join(capsys.readouterr().out.split())
    assert "target kernels ran 6 times in graphs and 2 times as plain launches" in out


def test_the_report_shows_it(pair, tmp_path, capsys):
    target = tmp_path / "report.html"
    assert app.main(["report", pair[0], "--gap", pair[1], "-o", str(target)]) == ExitCode.AGREES
    capsys.readouterr()
    page = target.read_text()
    assert 'id="gap"' in page
    assert "Inside a replay and between two" in page


def test_the_report_pairs_unequal_runs_if_it_is_allowed_to(tmp_path, capsys):
    pair = scenes.write_pair(tmp_path, [scenes.launched(replays=3)], [scenes.seen(replays=5)])
    target = tmp_path / "report.html"
    command = ["report", str(pair[0]), "--gap", str(pair[1]), "-o", str(target)]
    pages = []
    for more in ([], ["--allow-unequal"]):
        assert app.main([*command, *more]) == ExitCode.AGREES
        pages.append(target.read_text())
    capsys.readouterr()
    assert ["in the second run only" in page for page in pages] == [True, True]
    assert ["Inside a replay and between two" in page for page in pages] == [False, True]


def test_allow_unequal_alone_is_refused(pair, capsys):
    assert app.main(["report", pair[0], "--allow-unequal"]) == ExitCode.USAGE
    assert "--allow-unequal: found no --gap" in capsys.readouterr().err
