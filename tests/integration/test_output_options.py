"""--junit, --markdown and --github: files, stdout, exit codes, and errors told in them too."""

import json
import shutil
from pathlib import Path

import builders
import pytest
from builders import seven_replays
from junitparser import JUnitXml

from kvtrace_cli.app import main
from kvtrace_cli.errors import ExitCode

DATA = Path(__file__).parents[1] / "data"
RECORDED = sorted(path.parent for path in DATA.rglob("manifest.json"))


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)


@pytest.fixture
def run(tmp_path):
    return builders.write_run(tmp_path / "run", seven_replays())


@pytest.fixture
def broken(tmp_path):
    trace = seven_replays()
    trace.lose(7)
    return builders.write_run(tmp_path / "broken", trace)


def counts(path):
    document = JUnitXml.fromfile(str(path))
    return document.tests, document.failures, document.errors


def test_all_three_beside_the_tables(run, tmp_path, capsys):
    junit, page = tmp_path / "k.xml", tmp_path / "k.md"
    arguments = ["reconcile", str(run), "--junit", str(junit), "--markdown", str(page), "--github"]
    assert main(arguments) == ExitCode.AGREES
    captured = capsys.readouterr()
    assert captured.err == ""
    last = captured.out.splitlines()[-1]
    assert last.startswith("::notice title=kvtrace reconcile ")
    assert "agrees: 280 of 280" in captured.out
    assert counts(junit) == (7, 0, 0)
    assert page.read_text().startswith(f"## ✅ kvtrace reconcile {run}".replace("_", "\\_"))


def test_a_mismatch_fails_tests_and_the_exit_code(broken, tmp_path, capsys):
    junit = tmp_path / "k.xml"
    arguments = ["reconcile", str(broken), "--junit", str(junit), "--github"]
    assert main(arguments) == ExitCode.MISMATCH
    assert counts(junit) == (7, 3, 0)
    out = capsys.readouterr().out
    assert out.count("\n::error title=") == 3
    assert "graph-node-blocks failed::279 of 280 graph-node blocks entered: 1 missing." in out


def test_an_audit_has_a_test_for_each_rule(tmp_path):
    junit = tmp_path / "k.xml"
    found = DATA / "h200-faults/freed-block-reused"
    assert main(["audit", str(found), "--junit", str(junit)]) == ExitCode.MISMATCH
    assert counts(junit) == (13, 1, 0)
    clean = DATA / "h200-faults/none"
    assert main(["audit", str(clean), "--junit", str(junit)]) == ExitCode.AGREES
    assert counts(junit) == (13, 0, 0)


def test_an_audit_without_a_write_passes_nothing(run, tmp_path):
    junit = tmp_path / "k.xml"
    assert main(["audit", str(run), "--junit", str(junit)]) == ExitCode.INCONCLUSIVE
    assert counts(junit) == (1, 0, 1)


@pytest.mark.parametrize("option", ["--junit", "--markdown"])
def test_a_dash_is_stdout_in_place_of_the_tables(run, capsys, option):
    assert main(["reconcile", str(run), option, "-"]) == ExitCode.AGREES
    out = capsys.readouterr().out
    assert out.startswith("<?xml" if option == "--junit" else "## ")
    assert "agrees: 280" not in out


@pytest.mark.parametrize("command", ["reconcile", "audit"])
@pytest.mark.parametrize(
    "options",
    [
        ["--json", "--github"],
        ["--json", "--markdown", "-"],
        ["--github", "--junit", "-"],
        ["--junit", "-", "--markdown", "-"],
    ],
)
def test_two_documents_are_never_mixed_on_stdout(run, capsys, command, options):
    assert main([command, str(run), *options]) == ExitCode.USAGE
    captured = capsys.readouterr()
    assert captured.out == ""
    assert f"kvtrace {command}: " in captured.err
    assert "would all be on stdout" in captured.err
    assert not (run / "summary.json").exists()


def test_json_and_files_go_together(run, tmp_path, capsys):
    junit = tmp_path / "k.xml"
    assert main(["reconcile", str(run), "--json", "--junit", str(junit)]) == ExitCode.AGREES
    assert json.loads(capsys.readouterr().out)["verdict"] == "agrees"
    assert counts(junit) == (7, 0, 0)


def test_a_file_is_replaced_but_a_step_summary_is_added_to(run, tmp_path, monkeypatch):
    page = tmp_path / "k.md"
    for _ in range(2):
        main(["reconcile", str(run), "--markdown", str(page)])
    assert page.read_text().count("\n## ") + 1 == 1
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(page))
    main(["audit", str(run), "--markdown", str(page)])
    assert page.read_text().count("## ") == 2


@pytest.mark.parametrize("option", ["--junit", "--markdown"])
def test_a_file_that_cannot_be_written_is_never_a_success(run, tmp_path, capsys, option):
    path = tmp_path / "none/k"
    assert main(["reconcile", str(run), option, str(path)]) == ExitCode.USAGE
    captured = capsys.readouterr()
    assert f"{path}: cannot be written (No such file or directory)" in captured.err
    assert "280 of 280" in captured.out


@pytest.mark.parametrize("command", ["reconcile", "audit"])
def test_an_error_replaces_what_an_earlier_run_left(run, tmp_path, capsys, command):
    junit, page = tmp_path / "k.xml", tmp_path / "k.md"
    options = ["--junit", str(junit), "--markdown", str(page), "--github"]
    main([command, str(run), *options])
    capsys.readouterr()
    missing = tmp_path / "none"
    assert main([command, str(missing), *options]) == ExitCode.USAGE
    captured = capsys.readouterr()
    assert "no such directory" in captured.err
    assert captured.out.startswith(f"::error title=kvtrace {command} ended with an error%3A input")
    assert str(missing) in captured.out
    assert counts(junit) == (1, 0, 1)
    assert page.read_text().startswith(f"## ⚠️ kvtrace {command} ended with an error: exit code 2\n")


def test_a_bug_is_told_too(run, tmp_path, capsys, monkeypatch):
    def broken(_):
        raise ZeroDivisionError("nought")

    monkeypatch.setattr("kvtrace_cli.commands.audit.step_tables", broken)
    junit = tmp_path / "k.xml"
    assert main(["audit", str(run), "--junit", str(junit)]) == ExitCode.BUG
    assert "a bug in kvtrace" in capsys.readouterr().err
    assert counts(junit) == (1, 0, 1)
    assert "ZeroDivisionError: nought" in junit.read_text()


@pytest.mark.parametrize("run", RECORDED, ids=lambda run: f"{run.parent.name}/{run.name}")
def test_no_recorded_run_looks_better_than_its_verdict(run, tmp_path):
    """A copy, as reconciling writes into the directory."""
    copy = shutil.copytree(run, tmp_path / "run")
    for command in ("reconcile", "audit"):
        junit = tmp_path / f"{command}.xml"
        code = main([command, str(copy), "--allow-incomplete", "--junit", str(junit)])
        tests, failures, errors = counts(junit)
        assert tests
        assert (failures > 0) == (code == ExitCode.MISMATCH)
        assert (failures + errors > 0) == (code != ExitCode.AGREES)
        assert errors or code != ExitCode.INCONCLUSIVE


def test_an_error_outweighs_a_file_that_cannot_be_written(tmp_path, capsys):
    arguments = ["reconcile", str(tmp_path / "run"), "--junit", str(tmp_path / "none/k.xml")]
    assert main(arguments) == ExitCode.USAGE
    err = capsys.readouterr().err
    assert "no such directory" in err
    assert "warning: " in err
    assert "cannot be written" in err
