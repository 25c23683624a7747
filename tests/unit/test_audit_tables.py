"""What an audit prints: readable at 80 columns, and nothing important cut off."""

import io

from audit_scenes import Scene
from rich.console import Console

from kvtrace_cli.analysis.audit_model import LayerWrite, TokenLife, TokenPass
from kvtrace_cli.reports.audit_tables import audit_tables
from kvtrace_cli.reports.show_tables import token_tables

REQUEST = "chatcmpl-" + "0123456789abcdef" * 5


def printed(parts):
    console = Console(width=80, record=True, file=io.StringIO())
    for part in parts:
        console.print(part)
    return console.export_text()


def test_a_clean_audit_says_of_how_many():
    scene = Scene(layers=40)
    scene.step("dummy", rows=8)
    scene.prompt("a", 6, [1, 2])
    scene.step(requests=[("a", 1, 6)], padded_rows=4)
    text = printed(audit_tables(scene.audit()))
    assert text.rstrip() == (
        "KV writes against the slots that the scheduler assigned\n"
        "rows     in steps  KV writes  stores\n"
        "owned           7        560     560\n"
        "padding         -          0       0\n"
        "dummy           8          0       0\n"
        "draft           0          0       0\n"
        "unknown         -          0       0\n"
        "560 writes expected, of 1 request, 40 layers, 1 process; 2 forward, 1 dummy and \n"
        "0 draft steps\n"
        "clean: 0 findings; 560 expected writes and 560 KV writes looked at"
    )


def test_findings_show_a_few_rows_in_full_and_count_the_rest():
    scene = Scene(layers=40)
    step = scene.prompt(REQUEST, 6, [1, 2])
    for row in range(5):
        scene.move(20 + row, step, row)
    text = printed(audit_tables(scene.audit()))
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    assert "wrong-slot: 400 findings (5 rows, 1 step, 40 layers, 1 request)" in text
    for row in range(3):
        assert f"expected slot {4 + row}, written slot {20 + row}, KV block 5 offset {row}" in (
            " ".join(text.split())
        )
    assert "expected slot 7" not in text
    assert "and 397 more; --json has them all" in text
    assert REQUEST in "".join(text.split())


def test_reasons_follow_the_conclusion():
    scene = Scene(started={"inexact": ["speculative decoding"]})
    scene.prompt("a", 5, [1, 2])
    scene.step(requests=[("a", 1, 5)])
    lines = printed(audit_tables(scene.audit())).splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("cannot judge: 0 fin"))
    assert lines[at + 1].startswith(" - Rows whose positions are upper bounds only (speculative")


def token_pass(layers):
    return TokenPass(
        process_id=7,
        rank="TP1 PP2",
        ranks={"tensor": 1, "pipeline": 2},
        step_stamp=3,
        step_kind="forward",
        graph_mode="FULL",
        rows=2,
        padded_rows=None,
        row=1,
        kv_group=0,
        launched="graph exec 1, replay 9 (5 nodes)",
        expected_slot=20,
        kv_block_id=1,
        offset=4,
        layers=layers,
        end="still held at the end",
    )


def test_a_tokens_layers_with_trouble_are_put_together():
    def layer(index, *problems, **changes):
        values = {
            "launch": f"node {index}",
            "entered_us": 1.5,
            "addresses": {"V": 0x7F0000000110, "K": 0x7F0000000100},
            "written_slots": (21,),
        } | changes
        return LayerWrite(layer_index=index, problems=problems, **values)

    wrong = [layer(index, "wrong-slot (K)") for index in (1, 2, 4)]
    absent = layer(3, "missing-write (K and V)", addresses={}, written_slots=(), entered_us=None)
    lost = layer(None, "outside-kv", launch="-", addresses={}, written_slots=(), entered_us=None)
    ok = layer(0, written_slots=(20,))
    one = token_pass((ok, *wrong[:2], absent, wrong[2], lost))
    life = TokenLife("a", 9, emulated=True, stores_recorded=True, passes=(one,), notes=())
    text = printed(token_tables(life))
    assert max(map(len, text.splitlines())) <= 80
    assert [" ".join(line.split()) for line in text.splitlines() if line] == [
        "Token 9 of request a (EMULATED)",
        "process 7 (TP1 PP2)",
        "step 3 (forward, graph mode FULL)",
        "row 1 of 2",
        "launched graph exec 1, replay 9 (5 nodes)",
        "expected slot 20 (KV block 1, offset 4, KV group 0)",
        "layer launch entered us K address V address slot",
        "0 node 0 1.500 0x7f0000000100 0x7f0000000110 20 ok",
        "1 node 1 1.500 0x7f0000000100 0x7f0000000110 21 wrong",
        "2 node 2 1.500 0x7f0000000100 0x7f0000000110 21 wrong",
        "3 node 3 - - - - wrong",
        "4 node 4 1.500 0x7f0000000100 0x7f0000000110 21 wrong",
        "? - - - - - wrong",
        "wrong-slot (K) in layers 1..2, 4",
        "missing-write (K and V) in layer 3",
        "outside-kv in layer ?",
        "afterwards: still held at the end",
    ]
