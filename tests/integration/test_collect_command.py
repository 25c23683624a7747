"""`kvtrace collect`: the recordings of several nodes become one, with nothing lost or mixed."""

import gzip
import json
import shutil
import tarfile

import builders
import pytest

from kvtrace_cli.app import main
from kvtrace_cli.capture import collect as collect_module
from kvtrace_cli.capture.renumber import raw_files
from kvtrace_cli.dumps.recording import read_recording
from kvtrace_cli.dumps.run_dir import open_run_dir

PID = builders.PROCESS_ID
RENUMBERED = 1 << 22
SIZES = {"tensor": 2, "pipeline": 1, "data": 1}


def node(path, tensor=0, *, pids=(PID,), requests=None, clock="here", complete=True, **changes):
    """Write what a node recorded: one process a rank, from `tensor` on."""
    manifest = {
        "run_id": "nightly",
        "engine": "vllm",
        "observer": "sanitizer",
        "traced": True,
        "subcommand": "exec" if requests is None else "run",
        "created": f"2026-01-01T00:00:0{tensor}+00:00",
        "host": f"node{tensor}",
        "host_clock": clock,
        "parallel": None,
        "gpus": [{"name": f"gpu of node{tensor}"}],
        "outcome": {
            "status": "complete",
            "events": 14,
            "launches": 14,
            "dropped": tensor,
            "injector_attached": True,
            "first_failure": None,
        },
    }
    run = builders.write_run(
        path, requests=requests or [], manifest=manifest | changes, complete=complete
    )
    if requests is None:
        (path / "requests.jsonl").unlink()
    for number, pid in enumerate(pids):
        trace = builders.replays(2, 7)
        trace.process_id = pid
        ranks = {"tensor": tensor + number, "pipeline": 0, "data": 0, "world": tensor + number}
        started = builders.started(ranks=ranks, world_sizes=SIZES, host_clock=clock)
        (run / f"raw/{pid}-0.events.kvt").write_bytes(trace.event_file())
        (run / f"raw/{pid}.launches.kvt").write_bytes(trace.launch_file())
        lines = [line | {"process_id": pid} for line in builders.journal()]
        builders.write_lines(run / f"raw/{pid}.journal.jsonl", lines)
        builders.write_lines(run / f"raw/{pid}.steps.jsonl", [started, builders.step(1)])
        (run / f"raw/{pid}.layout.json").write_text(json.dumps(builders.layout()))
    return run


@pytest.fixture
def head(tmp_path):
    """The node that sent the requests."""
    return node(tmp_path / "head", requests=[builders.request()])


@pytest.fixture
def worker(tmp_path):
    """Another host, where the process happened to get the same number."""
    return node(tmp_path / "worker", 1, clock="there")


def packed(run, path):
    with tarfile.open(path, "w:gz") as archive:
        archive.add(run, run.name)
    return path


def collected(tmp_path, *sources, options=()):
    out = tmp_path / "out"
    assert main(["collect", *options, str(out), *map(str, sources)]) == 0
    return out


def refusal(capsys, tmp_path, *sources, options=()):
    """Return the message of a collection that is refused; nothing is left of it."""
    before = sorted(path.name for path in tmp_path.iterdir())
    assert main(["collect", *options, str(tmp_path / "out"), *map(str, sources)]) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    return capsys.readouterr().err


def test_processes_of_the_same_number_become_two(head, worker, tmp_path, capsys):
    """Whatever order they are given in, the node with the requests keeps its numbers."""
    out = collected(tmp_path, worker, head)
    assert set(raw_files(out / "raw")) == {PID, RENUMBERED}
    recording = read_recording(open_run_dir(out, allow_incomplete=False))
    assert {dump.header.process_id for dump in recording.launches} == {PID, RENUMBERED}
    assert {line["process_id"] for line in recording.journal} == {PID, RENUMBERED}
    told = {one.process_id: one.started["ranks"]["tensor"] for one in recording.steps}
    assert told == {PID: 0, RENUMBERED: 1}
    manifest = json.loads((out / "manifest.json").read_text())
    assert [one["processes"] for one in manifest["collected"]] == [
        [[PID, PID]],
        [[PID, RENUMBERED]],
    ]
    shown = capsys.readouterr().out
    assert str(RENUMBERED) in shown
    assert "TP1" in shown


def test_nothing_but_the_number_changes(head, worker, tmp_path):
    out = collected(tmp_path, head, worker)
    for name in ("-0.events.kvt", ".launches.kvt"):
        before = (worker / f"raw/{PID}{name}").read_bytes()
        after = (out / f"raw/{RENUMBERED}{name}").read_bytes()
        assert after == before.replace(PID.to_bytes(4, "little"), RENUMBERED.to_bytes(4, "little"))
        assert (out / f"raw/{PID}{name}").read_bytes() == (head / f"raw/{PID}{name}").read_bytes()
    for name in (".steps.jsonl", ".layout.json"):
        after = (out / f"raw/{RENUMBERED}{name}").read_bytes()
        assert after == (worker / f"raw/{PID}{name}").read_bytes()
    assert (out / "requests.jsonl").read_bytes() == (head / "requests.jsonl").read_bytes()


def test_the_manifest_tells_of_all_nodes_and_whose_clock_is_another(head, worker, tmp_path):
    manifest = json.loads((collected(tmp_path, head, worker) / "manifest.json").read_text())
    assert [(one["process_id"], one["clock"]) for one in manifest["ranks"]] == [
        (PID, "this host"),
        (RENUMBERED, "other host"),
    ]
    assert manifest["host"] == "node0"
    assert [one["host"] for one in manifest["collected"]] == ["node0", "node1"]
    assert [gpu["name"] for gpu in manifest["gpus"]] == ["gpu of node0", "gpu of node1"]
    outcome = manifest["outcome"]
    assert (outcome["events"], outcome["dropped"]) == (28, 1)


def test_a_process_that_tells_no_clock_has_that_of_its_node(head, worker, tmp_path):
    (worker / f"raw/{PID}.steps.jsonl").unlink()
    manifest = json.loads((collected(tmp_path, head, worker) / "manifest.json").read_text())
    assert [one["clock"] for one in manifest["ranks"]] == ["this host", "other host"]


def test_an_archive_is_as_good_as_its_directory(head, worker, tmp_path):
    archive = packed(worker, tmp_path / "worker.tar.gz")
    shutil.rmtree(worker)
    assert set(raw_files(collected(tmp_path, head, archive) / "raw")) == {PID, RENUMBERED}


@pytest.mark.parametrize("which", ["head", "worker"])
def test_packed_files_are_unpacked(head, worker, tmp_path, which):
    for path in (tmp_path / which / "raw").iterdir():
        if not path.name.endswith(".journal.jsonl"):
            path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
            path.unlink()
    out = collected(tmp_path, head, worker)
    recording = read_recording(open_run_dir(out, allow_incomplete=False))
    assert {dump.header.process_id for dump in recording.launches} == {PID, RENUMBERED}
    manifest = json.loads((out / "manifest.json").read_text())
    assert [one["tensor"] for one in manifest["ranks"]] == [0, 1]


def test_a_packed_file_that_is_damaged_is_refused(head, worker, tmp_path, capsys):
    path = worker / f"raw/{PID}.launches.kvt"
    path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes())[:-20])
    path.unlink()
    assert "a gzip file that was cut short" in refusal(capsys, tmp_path, head, worker)


def test_a_torn_journal_stays_torn(head, worker, tmp_path):
    torn = '{"event": "ended", "process_id": 47'
    with (worker / f"raw/{PID}.journal.jsonl").open("a") as file:
        file.write(torn)
    out = collected(tmp_path, head, worker)
    assert (out / f"raw/{RENUMBERED}.journal.jsonl").read_text().endswith(torn)


def test_ranks_that_are_not_there_are_named(worker, tmp_path, capsys):
    out = collected(tmp_path, worker, options=["--json"])
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    assert document["missing_ranks"] == ["TP0"]
    assert [one["rank"] for one in document["processes"]] == ["TP1"]
    assert "not among them: rank TP0" in captured.err
    assert document["run_dir"] == str(out)


def test_a_part_that_did_not_end_in_order_makes_the_whole_one_that_did_not(head, tmp_path, capsys):
    worker = node(tmp_path / "worker", 1, complete=False)
    assert "INCOMPLETE is there" in refusal(capsys, tmp_path, head, worker)
    out = collected(tmp_path, head, worker, options=["--allow-incomplete"])
    assert (out / "INCOMPLETE").exists()
    assert not (out / "COMPLETE").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"run_id": "another"}, "run_id 'another', expected 'nightly' as head has"),
        ({"run_id": None}, "run_id None, expected 'nightly'"),
        ({"engine": "emulator"}, "engine 'emulator', expected 'vllm'"),
        ({"observer": "cupti"}, "observer 'cupti', expected 'sanitizer'"),
    ],
)
def test_parts_of_different_runs_are_refused(head, tmp_path, capsys, changes, message):
    worker = node(tmp_path / "worker", 1, **changes)
    assert message in refusal(capsys, tmp_path, head, worker)


def test_a_run_without_a_name_is_refused(tmp_path, capsys):
    old = node(tmp_path / "old", run_id=None)
    assert "its manifest has no run_id" in refusal(capsys, tmp_path, old)


def test_the_same_part_twice_is_refused(head, tmp_path, capsys):
    archive = packed(head, tmp_path / "again.tar.gz")
    assert "given twice" in refusal(capsys, tmp_path, head, archive)


def test_two_parts_that_sent_requests_are_refused(head, tmp_path, capsys):
    other = node(tmp_path / "other", 1, requests=[builders.request()])
    told = refusal(capsys, tmp_path, head, other)
    assert "head and other: each sent requests of its own" in told


def test_what_is_there_is_never_replaced(head, tmp_path, capsys):
    (tmp_path / "out").mkdir()
    assert "is there already" in refusal(capsys, tmp_path, head)


def test_a_dump_of_another_process_than_its_name_says_is_refused(head, worker, tmp_path, capsys):
    trace = builders.replays(2, 7)
    trace.process_id = 99
    (worker / f"raw/{PID}-0.events.kvt").write_bytes(trace.event_file())
    told = refusal(capsys, tmp_path, head, worker)
    assert f"header says process 99, expected {PID}" in told


def test_a_copy_that_fails_leaves_nothing(head, tmp_path, capsys, monkeypatch):
    def fail(_files, _target, _old, _new):
        raise OSError(28, "No space left on device", "x")

    monkeypatch.setattr(collect_module, "copy_process", fail)
    told = refusal(capsys, tmp_path, head)
    assert "x: cannot be copied (No space left on device); nothing was collected" in told


def torn(worker, tmp_path):
    archive = packed(worker, tmp_path / "torn.tar.gz")
    archive.write_bytes(archive.read_bytes()[:200])
    return archive


def no_archive(_worker, tmp_path):
    (tmp_path / "text.tar.gz").write_text("hello")
    return tmp_path / "text.tar.gz"


def odd_name(_worker, tmp_path):
    (tmp_path / "run.zip").write_text("hello")
    return tmp_path / "run.zip"


def empty(_worker, tmp_path):
    (tmp_path / "folder").mkdir()
    return packed(tmp_path / "folder", tmp_path / "empty.tar.gz")


def pointing_out(worker, tmp_path):
    archive = tmp_path / "out.tar.gz"
    with tarfile.open(archive, "w:gz") as file:
        file.add(worker / "manifest.json", "../manifest.json")
    return archive


def link(_worker, tmp_path):
    (tmp_path / "link").symlink_to("/etc")
    return packed(tmp_path / "link", tmp_path / "link.tar.gz")


def nowhere(_worker, tmp_path):
    return tmp_path / "nowhere"


@pytest.mark.parametrize(
    "case",
    [
        (torn, "torn.tar.gz: not a whole archive"),
        (no_archive, "text.tar.gz: not a whole archive"),
        (odd_name, "run.zip: found a file, expected a run directory or an archive"),
        (empty, "found 0 run directories in it, expected one"),
        (pointing_out, "holds '../manifest.json', expected the plain files"),
        (link, "holds 'link', expected the plain files"),
        (nowhere, "nowhere: no such directory"),
    ],
)
def test_what_is_no_run_is_refused(head, worker, tmp_path, capsys, case):
    make, message = case
    source = make(worker, tmp_path)
    assert message in refusal(capsys, tmp_path, head, source)
