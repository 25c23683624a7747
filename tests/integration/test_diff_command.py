"""`kvtrace diff` and `kvtrace baseline save`: stdout, stderr, exit codes, on real and made runs."""

import json
import shutil
from pathlib import Path

import pytest
from builders import flags, request, write_run
from diff_scenes import MANIFEST, prompt_and_replays, with_manifest

from kvtrace_cli.app import main
from kvtrace_cli.errors import ExitCode

DATA = Path(__file__).parents[1] / "data"


@pytest.fixture(autouse=True)
def width(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")


def run(path, *traces, **options):
    return write_run(
        path, *(traces or (prompt_and_replays(),)), **({"manifest": MANIFEST} | options)
    )


@pytest.fixture
def pair(tmp_path):
    """Two runs of one set-up, reconciled."""
    found = [run(tmp_path / name) for name in ("a", "b")]
    for one in found:
        assert main(["reconcile", str(one)]) == ExitCode.AGREES
    return found


@pytest.fixture
def baseline(tmp_path, pair):
    path = tmp_path / "kvtrace-baseline.json"
    assert main(["baseline", "save", str(pair[0]), "-o", str(path)]) == ExitCode.AGREES
    return path


@pytest.fixture
def longer(tmp_path):
    """The same set-up with one more replay."""
    return run(tmp_path / "longer", prompt_and_replays(8))


def diff(*arguments):
    return main(["diff", *map(str, arguments)])


def recorded(tmp_path, name):
    """Return a copy of a recorded run, so that nothing is left in the test data."""
    return shutil.copytree(DATA / name, tmp_path / Path(name).name)


def test_directories_files_and_baselines_can_be_compared_with_each_other(pair, baseline, capsys):
    capsys.readouterr()
    for before in (pair[0], pair[0] / "summary.json", baseline):
        assert diff(before, pair[1]) == ExitCode.AGREES
        captured = capsys.readouterr()
        assert captured.err == ""
        assert "same: " in captured.out
        assert all(len(line) <= 80 for line in captured.out.splitlines())


def test_a_run_that_was_not_reconciled_is_so_now_and_stderr_says_it(pair, longer, capsys):
    capsys.readouterr()
    assert diff(pair[0], longer) == ExitCode.MISMATCH
    captured = capsys.readouterr()
    assert captured.err.replace("\n", " ").strip() == (
        f"{longer}: no summary.json, so its recording is reconciled"
    )
    assert "7 replays of a 4-node graph, then 8 replays of a" in captured.out
    assert not (longer / "summary.json").exists(), "comparing writes nothing into a run"


def test_a_summary_of_an_older_kvtrace_in_a_run_directory_is_made_anew(pair, capsys):
    path = pair[1] / "summary.json"
    path.write_text(json.dumps(old(json.loads(path.read_text()))))
    assert diff(*pair) == ExitCode.AGREES
    assert "of an older version, so its recording" in capsys.readouterr().err


def test_json_is_one_document_on_stdout(pair, longer, capsys):
    capsys.readouterr()
    assert diff(pair[0], longer, "--json") == ExitCode.MISMATCH
    document = json.loads(capsys.readouterr().out)
    assert (document["schema_version"], document["verdict"]) == (1, "differs")
    assert (document["before"], document["after"]) == (str(pair[0]), str(longer))
    (difference,) = document["differences"]
    assert difference["rule"] == "course"
    assert difference["text"] == (
        "measured request 1: 7 replays of a 4-node graph, then 8 replays of a 4-node graph."
    )
    assert {one["clock"] for one in document["times"]} == {"GPU globaltimer"}
    assert "kernels" in document["checks"]


def test_other_requests_are_inconclusive_until_they_are_allowed(tmp_path, pair, capsys):
    asked = [request(max_tokens=9, returned_token_ids=list(range(9)))]
    nine = run(tmp_path / "nine", prompt_and_replays(8), requests=asked)
    capsys.readouterr()
    assert diff(pair[0], nine) == ExitCode.INCONCLUSIVE
    out = capsys.readouterr().out
    assert "1 measured of 3 + 8 tokens, then 1" in out
    assert "--allow requests" in out
    assert diff(pair[0], nine, "--allow", "requests") == ExitCode.MISMATCH
    assert "differs: measured request 1: 7 replays of a 4-node graph" in capsys.readouterr().out


def test_times_have_a_threshold(tmp_path, pair):
    trace = prompt_and_replays()
    first = trace.events[0]["gpu_globaltimer_ns"]
    for event in trace.events:
        event["gpu_globaltimer_ns"] = first + 2 * (event["gpu_globaltimer_ns"] - first)
    slow = run(tmp_path / "slow", trace)
    assert diff(pair[0], slow) == ExitCode.MISMATCH
    assert diff(pair[0], slow, "--max-regression", "150") == ExitCode.AGREES
    assert diff(pair[0], slow, "--no-times") == ExitCode.AGREES
    assert diff(slow, pair[0]) == ExitCode.AGREES, "faster is no failure"


def test_an_incomplete_side_is_inconclusive(tmp_path, pair, capsys):
    trace = prompt_and_replays()
    trace.changes = {"flags": flags("PATCHED")}
    killed = run(tmp_path / "killed", trace, complete=False)
    assert diff(pair[0], killed) == ExitCode.INCONCLUSIVE
    assert diff(killed, killed) == ExitCode.INCONCLUSIVE
    assert "incomplete" in capsys.readouterr().out


def old(document):
    new = ("kind", "settings", "structure", "times")
    kept = {name: value for name, value in document.items() if name not in new}
    return kept | {"schema_version": 1}


def unreadable(tmp_path, baseline):
    """Return sides that cannot be read, each with the words that tell it from the others."""
    whole = baseline.read_text()
    document = json.loads(whole)
    texts = {
        "truncated": (whole[: len(whole) // 2], "no JSON in line"),
        "binary": ("\x00\x01", "no JSON in line"),
        "damaged": (
            json.dumps(document | {"structure": {}}),
            "the summary.structure has no kernels",
        ),
        "newer": (json.dumps(document | {"schema_version": 9}), "schema version 9, this kvtrace"),
        "older": (json.dumps(old(document)), "make the older one anew, or compare what both"),
        "other": ('{"schema_version": 1, "subcommand": "run"}', "expected a summary: a run"),
    }
    for name, (text, message) in texts.items():
        path = tmp_path / f"{name}.json"
        path.write_text(text)
        yield path, message
    (tmp_path / "empty").mkdir()
    yield tmp_path / "empty", "neither a summary.json nor a run directory"
    yield tmp_path / "none", "no such file or directory"
    broken = run(tmp_path / "broken")
    (broken / "raw/4711-0.events.kvt").write_bytes(b"torn")
    yield broken, "4711-0.events.kvt"


def test_each_side_that_cannot_be_read_has_its_own_error(tmp_path, baseline, capsys):
    for path, message in unreadable(tmp_path, baseline):
        for sides in ((path, baseline), (baseline, path)):
            capsys.readouterr()
            assert diff(*sides) == ExitCode.USAGE, path
            captured = capsys.readouterr()
            assert captured.out == ""
            assert str(path) in captured.err
            assert message in captured.err


def test_older_summaries_are_compared_as_far_as_they_go(tmp_path, baseline, capsys):
    path = tmp_path / "older.json"
    path.write_text(json.dumps(old(json.loads(baseline.read_text()))))
    assert diff(path, path) == ExitCode.INCONCLUSIVE
    assert "--allow schema" in capsys.readouterr().out
    assert diff(path, path, "--allow", "schema") == ExitCode.AGREES
    assert diff(path, baseline, "--allow", "schema") == ExitCode.AGREES


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (("--allow", "weather"), "--allow: found 'weather', expected one of schema, engine"),
        (("--max-regression", "-1"), "--max-regression: found -1, expected percent, 0 or more"),
        (("--max-regression", "nan"), "--max-regression: found nan"),
    ],
)
def test_options_that_cannot_be(pair, capsys, option, message):
    capsys.readouterr()
    assert diff(*pair, *option) == ExitCode.USAGE
    assert message in capsys.readouterr().err


def test_a_baseline_is_small_and_has_nothing_of_its_machine(tmp_path, pair, capsys):
    path = tmp_path / "b.json"
    capsys.readouterr()
    assert main(["baseline", "save", str(pair[0]), "-o", str(path)]) == ExitCode.AGREES
    text = path.read_text()
    assert len(text) < 20_000
    assert str(tmp_path) not in text
    assert "4711" not in text
    captured = capsys.readouterr()
    assert captured.out == ""
    assert f"saved {path}" in captured.err.replace("\n", " ")


def test_two_runs_of_one_set_up_give_the_same_baseline(tmp_path, pair):
    texts = []
    for one in pair:
        path = tmp_path / f"{one.name}.json"
        assert main(["baseline", "save", str(one), "-o", str(path)]) == ExitCode.AGREES
        texts.append(path.read_text())
    assert texts[0] == texts[1]


def test_a_run_that_proves_nothing_is_no_baseline(tmp_path, capsys):
    trace = prompt_and_replays()
    trace.lose(7)
    path = tmp_path / "b.json"
    runs = {
        "mismatch": run(tmp_path / "mismatch", trace),
        "inconclusive": write_run(tmp_path / "inconclusive"),
        "incomplete": run(tmp_path / "incomplete", complete=False),
    }
    for found, one in runs.items():
        arguments = ["baseline", "save", str(one), "-o", str(path)]
        assert main(arguments) == ExitCode.USAGE
        assert f"the run is {found}, expected one that agrees" in capsys.readouterr().err
        assert not path.exists()
        assert main([*arguments, "--force"]) == ExitCode.AGREES
        path.unlink()


def test_a_baseline_that_cannot_be_written(pair, tmp_path, capsys):
    arguments = ["baseline", "save", str(pair[0]), "-o", str(tmp_path / "none" / "b.json")]
    assert main(arguments) == ExitCode.USAGE
    assert "cannot be written" in capsys.readouterr().err


def test_an_old_summary_is_no_baseline(tmp_path, baseline, capsys):
    path = tmp_path / "older.json"
    path.write_text(json.dumps(old(json.loads(baseline.read_text()))))
    arguments = ["baseline", "save", str(path), "-o", str(tmp_path / "b.json")]
    assert main(arguments) == ExitCode.USAGE
    assert "schema version 1, expected 3" in capsys.readouterr().err


def test_only_save_is_done_with_a_baseline(pair, capsys):
    assert main(["baseline", "burn", str(pair[0])]) == ExitCode.USAGE
    assert "save" in capsys.readouterr().err


def test_flash_attention_2_and_3_write_the_cache_alike(tmp_path, capsys):
    """Recorded on an H200: only the setting is listed, and no time is worse."""
    before, after = (recorded(tmp_path, name) for name in ("h200-fa2", "h200-fa3"))
    assert diff(before, after, "--json") == ExitCode.AGREES
    document = json.loads(capsys.readouterr().out)
    assert [one["rule"] for one in document["differences"]] == ["setting-flash-attention"]
    assert len(document["times"]) == 3
    assert {"kernels", "course", "first-to-last-layer"} <= set(document["checks"])


def test_another_way_of_recording_is_inconclusive(tmp_path, capsys):
    before, after = (recorded(tmp_path, name) for name in ("h200-fa3", "h200-writes"))
    assert diff(before, after) == ExitCode.INCONCLUSIVE
    assert "--allow recording" in capsys.readouterr().out


FAULTS = {
    "block-size-mixup": "slots",
    "dummy-slot-zero": "dummy-stores",
    "freed-block-reused": "two-writers",
    "padding-last-slot": "padding-stores",
    "stale-padding-slots": "padding-stores",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_seeded_bugs_of_the_slots_are_found_by_comparing(tmp_path, capsys, fault):
    """Recorded on an H200 with three requests at once: what goes astray is no matter of timing."""
    before, after = (recorded(tmp_path, f"h200-faults/{name}") for name in ("none", fault))
    assert diff(before, before) == ExitCode.AGREES
    capsys.readouterr()
    assert diff(before, after, "--json", "--no-times") == ExitCode.MISMATCH
    differences = json.loads(capsys.readouterr().out)["differences"]
    rules = {one["rule"] for one in differences if one["decides"]}
    assert rules == {FAULTS[fault]}


def test_a_killed_run_is_never_the_same(tmp_path):
    before, after = (recorded(tmp_path, name) for name in ("h200-fa3", "h200-killed"))
    assert diff(before, after, "--allow", "requests") == ExitCode.INCONCLUSIVE


def test_settings_that_are_compared_on_purpose_are_listed(tmp_path, pair, capsys):
    other = run(tmp_path / "c", manifest=with_manifest(engine={"capture_sizes": [8]}))
    capsys.readouterr()
    assert diff(pair[0], other) == ExitCode.AGREES
    assert "capture sizes" in capsys.readouterr().out
