"""`kvtrace audit` and `kvtrace show` on run directories: stdout, stderr and exit code."""

import json

import builders
import pytest
from builders import Trace, flags, kv_address

from kvtrace_cli.app import main
from kvtrace_cli.errors import ExitCode

REQUEST = "cmpl-kvtrace-0-0-4f6b1c2d"
LAYERS = 2
PROMPT = 8
# Its KV blocks are 3 and 4, of 16 tokens.
FIRST_SLOT = 48


@pytest.fixture(autouse=True)
def width(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")


def steps(**changes):
    """A dummy step, a prompt of eight tokens and two decode steps of a graph for two rows."""
    lines = [
        builders.started(),
        builders.step(1, "dummy", rows=2),
        builders.step(
            2,
            requests=[[REQUEST, PROMPT, 0]],
            admitted=[[REQUEST, 0, [[3, 4]]]],
            padded_rows=PROMPT,
        ),
        *(
            builders.step(3 + number, requests=[[REQUEST, 1, PROMPT + number]], padded_rows=2)
            for number in range(2)
        ),
    ]
    lines[0] |= changes
    return lines


def as_assigned(_step, _row, _layer, slot):
    return slot


def traced(*, slot_of=as_assigned, stores=True):
    """Record those steps: each row of each layer stores K and V at the slot that `slot_of` says."""
    flag_names = ("CLOSED", "PATCHED", "WRITES") if stores else ("CLOSED", "PATCHED")
    trace = Trace(changes={"flags": flags(*flag_names)})
    expected = {2: range(FIRST_SLOT, FIRST_SLOT + PROMPT), 3: [56], 4: [57]}
    for step in range(1, 5):
        rows = PROMPT if step == 2 else 2
        for layer in range(LAYERS):
            if step < 3:
                launch = trace.plain((rows, 1, 1), step_stamp=step)
            else:
                launch = trace.node(layer, step - 2, (rows, 1, 1), step_stamp=step)
            for row in range(rows):
                trace.enter(launch, (row, 0, 0))
                slots = expected.get(step, ())
                slot = slot_of(step, row, layer, slots[row] if row < len(slots) else None)
                if stores and slot is not None:
                    for part in ("K", "V"):
                        trace.store(launch, (row, 0, 0), kv_address(slot, layer, part))
    return trace


def written(path, trace, **options):
    requests = [builders.request(request_id="kvtrace-0")]
    values = {"steps": steps(), "layout": builders.layout(LAYERS), "requests": requests}
    return builders.write_run(path / "run", trace, **(values | options))


def shifted(step, row, layer, slot):
    """The second layer of the last step writes one slot further."""
    return slot + 1 if (step, row, layer) == (4, 0, 1) else slot


def test_a_clean_run(tmp_path, capsys):
    run = written(tmp_path, traced())
    assert main(["audit", str(run)]) == ExitCode.AGREES
    captured = capsys.readouterr()
    assert captured.err == ""
    assert "owned          10         40      40" in captured.out
    assert "padding         2          0       0" in captured.out
    assert "40 writes expected, of 1 request, 2 layers, 1 process" in captured.out
    assert "clean: 0 findings; 40 expected writes and 40 KV writes looked at" in captured.out


def test_a_finding_and_its_evidence(tmp_path, capsys):
    run = written(tmp_path, traced(slot_of=shifted))
    assert main(["audit", str(run)]) == ExitCode.MISMATCH
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    assert "wrong-slot: 2 findings (1 row, 1 step, 1 layer, 1 request)" in out
    words = " ".join(out.split())
    assert (
        f"token 9 of request {REQUEST} wrote K to slot 58, which is its own token 10 "
        "step 4 (forward), layer 1, row 0, expected slot 57, written slot 58, KV block 3 offset "
        f"10, address {kv_address(58, 1):#x}, event 65 of context 0, process 4711"
    ) in words
    assert "and 1 more; --json has them all" in words
    assert "findings: 2 findings" in words


def test_json_has_every_finding(tmp_path, capsys):
    run = written(tmp_path, traced(slot_of=shifted))
    assert main(["audit", str(run), "--json"]) == ExitCode.MISMATCH
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    assert (captured.err, document["verdict"], document["run_dir"]) == ("", "findings", str(run))
    assert [finding["part"] for finding in document["findings"]] == ["K", "V"]
    finding = document["findings"][0]
    assert (
        finding.items()
        >= {
            "rule": "wrong-slot",
            "expected_slot": 57,
            "written_slot": 58,
            "ranks": {"tensor": 0, "world": 0},
            "address": kv_address(58, 1),
            "held_by": REQUEST,
            "held_position": 10,
        }.items()
    )
    assert document["rules"] == [
        {
            "rule": "wrong-slot",
            "findings": 2,
            "rows": 1,
            "layers": 1,
            "steps": 1,
            "requests": 1,
        }
    ]


def test_json_of_a_clean_run_has_an_empty_list(tmp_path, capsys):
    run = written(tmp_path, traced())
    assert main(["audit", str(run), "--json"]) == ExitCode.AGREES
    document = json.loads(capsys.readouterr().out)
    assert (document["findings"], document["rules"], document["reasons"]) == ([], [], [])
    assert document["judged"]["expected_writes"] == 40


def last_slot(step, _row, _layer, slot):
    """A padding row's -1 is taken as an index: the last slot of the cache."""
    return 511 if slot is None and step > 2 else slot


def test_padding_rows_that_write(tmp_path, capsys):
    run = written(tmp_path, traced(slot_of=last_slot))
    assert main(["audit", str(run)]) == ExitCode.MISMATCH
    assert "padding-row-wrote: 8 findings (2 rows, 2 steps, 2 layers)" in capsys.readouterr().out


DOUBTS = {
    "no stores": ({"trace": {"stores": False}}, "record again with --record writes"),
    "no steps": ({"steps": None, "layout": None}, "recorded no steps"),
    "no layout": ({"layout": None}, "No layout was recorded in process 4711"),
    "plug-in failed": (
        {"steps": [*steps(), {"event": "failed", "hook": "prepare_inputs", "error": "no rows"}]},
        "The engine plug-in failed in process 4711 at prepare_inputs: no rows.",
    ),
    "no stamps": ({"steps": steps(stamped=False)}, "took no step stamps in process 4711"),
    "missing hooks": ({"steps": steps(missing=["draft"])}, "hooks into in process 4711: draft."),
    "inexact": (
        {"steps": steps(inexact=["speculative decoding"])},
        "upper bounds only (speculative decoding), so that their slots were not compared: 2.",
    ),
    "axes": (
        {
            "layout": builders.layout(
                LAYERS,
                tensors=[one | {"axes": None} for one in builders.layout(LAYERS)["tensors"]],
            )
        },
        "The axes of KV tensors of process 4711 are not known: layers.0, layers.1.",
    ),
    "unknown steps": (
        {"steps": steps()[:4]},
        "Stores of no recorded step, so without an owner: 4.",
    ),
    "unknown kernel": (
        {"journal_lines": builders.journal(name="some_other_kernel")},
        "Writes of rows that could not be told from the launch: 40.",
    ),
    "silent layer": (
        {"layout": builders.layout(LAYERS + 1)},
        "the kernel that writes them may not be recorded: 2.",
    ),
}


@pytest.mark.parametrize("case", DOUBTS)
def test_what_cannot_be_judged_is_said_and_exits_4(tmp_path, capsys, case):
    changes, sentence = DOUBTS[case]
    changes = dict(changes)
    run = written(tmp_path, traced(**changes.pop("trace", {})), **changes)
    assert main(["audit", str(run)]) == ExitCode.INCONCLUSIVE
    out = capsys.readouterr().out
    assert sentence in " ".join(out.split())
    assert "cannot judge: 0 findings" in out


def test_lost_events_are_a_doubt_and_no_missing_writes(tmp_path, capsys):
    trace = traced()
    del trace.events[-2:]
    trace.drop_stores(0)
    trace.dropped = trace.stores_dropped = 2
    ended = {"event": "ended", "context_index": 0, "stores_dropped": 2}
    run = written(tmp_path, trace, journal_lines=[*builders.journal(), ended])
    assert main(["audit", str(run)]) == ExitCode.INCONCLUSIVE
    words = " ".join(capsys.readouterr().out.split())
    assert "2 records were dropped" in words
    assert "missing-write" not in words


def test_findings_outweigh_doubts_and_both_are_told(tmp_path, capsys):
    run = written(tmp_path, traced(slot_of=shifted), steps=steps(missing=["draft"]))
    assert main(["audit", str(run)]) == ExitCode.MISMATCH
    out = capsys.readouterr().out
    assert "wrong-slot: 2 findings" in out
    assert "lacks what the plug-in hooks into" in out


def test_an_incomplete_run_is_refused_and_never_clean(tmp_path, capsys):
    run = written(tmp_path, traced(), complete=False)
    assert main(["audit", str(run)]) == ExitCode.USAGE
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "--allow-incomplete" in captured.err
    assert main(["audit", str(run), "--allow-incomplete"]) == ExitCode.INCONCLUSIVE


def test_a_killed_run_lacks_its_last_writes_without_a_finding(tmp_path, capsys):
    trace = traced()
    del trace.events[-4:]
    run = written(tmp_path, trace, complete=False)
    assert main(["audit", str(run), "--allow-incomplete"]) == ExitCode.INCONCLUSIVE
    assert "missing-write" not in capsys.readouterr().out


def test_a_write_that_lacks_in_a_whole_recording_is_a_finding(tmp_path, capsys):
    trace = traced()
    trace.lose(-2)
    run = written(tmp_path, trace)
    assert main(["audit", str(run)]) == ExitCode.MISMATCH
    assert "missing-write: 1 finding" in capsys.readouterr().out


def test_an_emulated_run_is_marked(tmp_path, capsys):
    trace = traced()
    trace.changes = {"flags": flags("CLOSED", "PATCHED", "WRITES", "EMULATED")}
    run = written(tmp_path, trace)
    assert main(["audit", str(run)]) == ExitCode.AGREES
    out = capsys.readouterr().out
    assert "(EMULATED)" in out
    assert "(emulated)" in out


@pytest.mark.parametrize("wanted", ["0", "kvtrace-0", "cmpl-kv", REQUEST])
def test_show_knows_a_request_by_all_its_names(tmp_path, capsys, wanted):
    run = written(tmp_path, traced())
    assert main(["show", str(run), "--request", wanted, "--token", "8"]) == ExitCode.AGREES
    captured = capsys.readouterr()
    assert captured.err == ""
    assert f"Token 8 of request {REQUEST}" in captured.out


def test_show_prints_the_life_of_a_token(tmp_path, capsys):
    run = written(tmp_path, traced())
    assert main(["show", str(run), "--request", "0", "--token", "8"]) == ExitCode.AGREES
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    assert [" ".join(line.split()) for line in out.splitlines() if line] == [
        f"Token 8 of request {REQUEST}",
        "process 4711",
        "step 3 (forward)",
        "row 0 of 1, 2 with padding",
        "launched graph exec 1, replay 1 (2 nodes)",
        "expected slot 56 (KV block 3, offset 8, KV group 0)",
        "layer launch entered us K address V address slot",
        f"0 node 0 0.000 {addresses(56, 0)} 56 ok",
        f"1 node 1 800.000 {addresses(56, 1)} 56 ok",
        "afterwards: still held at the end",
    ]


def addresses(slot, layer):
    return " ".join(f"{kv_address(slot, layer, part):#x}" for part in ("K", "V"))


def test_show_says_what_is_wrong_and_who_came_after(tmp_path, capsys):
    def clash(step, row, layer, slot):
        return 56 if (step, row, layer) == (4, 0, 1) else slot

    run = written(tmp_path, traced(slot_of=clash))
    assert main(["show", str(run), "--request", "0", "--token", "9", "--json"]) == ExitCode.AGREES
    document = json.loads(capsys.readouterr().out)
    assert (document["schema_version"], document["run_dir"]) == (1, str(run))
    layers = document["passes"][0]["layers"]
    assert [layer["problems"] for layer in layers] == [[], ["wrong-slot (K and V)"]]
    assert layers[1]["written_slots"] == [56]
    assert main(["show", str(run), "--request", "0", "--token", "8"]) == ExitCode.AGREES
    expected = f"afterwards: overwritten in step 4 by token 9 of request {REQUEST}"
    assert expected in " ".join(capsys.readouterr().out.split())


def test_show_tells_a_write_that_did_not_happen(tmp_path, capsys):
    def skipped(step, row, layer, slot):
        return None if (step, row, layer) == (3, 0, 1) else slot

    run = written(tmp_path, traced(slot_of=skipped))
    assert main(["show", str(run), "--request", "0", "--token", "8"]) == ExitCode.AGREES
    assert "missing-write (K and V) in layer 1\n" in capsys.readouterr().out


def test_show_without_stores_tells_what_entered(tmp_path, capsys):
    run = written(tmp_path, traced(stores=False))
    assert main(["show", str(run), "--request", "0", "--token", "3"]) == ExitCode.AGREES
    out = capsys.readouterr().out
    assert out.count("entered\n") == 2
    assert "2 plain launches" in out
    assert "what entered and not what was written" in " ".join(out.split())
    assert "address" not in out


def test_show_of_a_token_from_the_prefix_cache(tmp_path, capsys):
    lines = steps()
    lines.append(
        builders.step(
            5,
            requests=[["cmpl-kvtrace-1-0-aa", 1, 16]],
            finished=[REQUEST],
            admitted=[["cmpl-kvtrace-1-0-aa", 16, [[3, 5]]]],
        )
    )
    run = written(tmp_path, traced(), steps=lines)
    assert main(["show", str(run), "--request", "cmpl-kvtrace-1", "--token", "3"]) == 0
    words = " ".join(capsys.readouterr().out.split())
    assert (
        "Found in the prefix cache in step 5, in slot 51, which step 2 computed as token 3 of "
        f"request {REQUEST}."
    ) in words


def test_show_errors(tmp_path, capsys):
    run = written(tmp_path, traced())
    other = [
        *steps(),
        builders.step(5, requests=[["cmpl-b", 1, 0]], admitted=[["cmpl-b", 0, [[7]]]]),
    ]
    two = written(tmp_path / "two", traced(), steps=other)
    cases = {
        (run, "9", "0"): f"no request '9' in its steps; it has: {REQUEST}",
        (run, "0", "10"): "has no token position 10; its steps computed positions up to 9",
        (run, "9" * 5000, "0"): "no request '999",
        (run, "0", "1" + "0" * 40): "Invalid value for '--token'",
        (two, "cmpl-", "0"): f"request 'cmpl-' can be 2 of its requests: {REQUEST}, cmpl-b",
    }
    for (path, wanted, token), message in cases.items():
        assert main(["show", str(path), "--request", wanted, "--token", token]) == ExitCode.USAGE
        captured = capsys.readouterr()
        assert captured.out == ""
        assert message in captured.err


def test_show_without_steps_cannot_tell(tmp_path, capsys):
    run = written(tmp_path, traced(), steps=None)
    assert main(["show", str(run), "--request", "0", "--token", "0"]) == ExitCode.INCONCLUSIVE
    assert "no step of the engine with a request is recorded" in capsys.readouterr().err


def test_launches_without_a_stamp_that_write_nothing_are_a_note(tmp_path, capsys):
    trace = traced()
    trace.enter_all(trace.plain((4, 1, 1)))
    run = written(tmp_path, trace)
    assert main(["audit", str(run)]) == ExitCode.AGREES
    assert (
        "note: Launches without a step stamp, whose rows have no owner: 1."
        in capsys.readouterr().out
    )


def test_a_process_that_wrote_without_steps_is_named(tmp_path, capsys):
    other = traced()
    other.process_id = 99
    run = written(tmp_path, traced())
    second = written(tmp_path / "other", other)
    for name in ("99-0.events.kvt", "99.launches.kvt", "99.journal.jsonl"):
        (second / "raw" / name).rename(run / "raw" / name)
    assert main(["audit", str(run)]) == ExitCode.INCONCLUSIVE
    words = " ".join(capsys.readouterr().out.split())
    assert "Process 99 wrote, but the engine plug-in recorded no steps in it." in words
    assert "40 expected writes and 40 KV writes looked at" in words


def test_stores_that_all_miss_the_tensors_are_never_clean(tmp_path, capsys):
    moved = builders.layout(LAYERS)
    for tensor in moved["tensors"]:
        tensor["address"] += 1 << 40
    run = written(tmp_path, traced(), layout=moved)
    assert main(["audit", str(run)]) == ExitCode.INCONCLUSIVE
    words = " ".join(capsys.readouterr().out.split())
    assert "no target kernel stored into a KV tensor" in words
    assert "Layers that no store went to in process 4711" in words
