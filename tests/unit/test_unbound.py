from builders import journal, write_lines

from kvtrace_cli.capture.unbound import journalled_unbound_functions as unbound_functions
from kvtrace_cli.dumps.run_dir import RunDir


def test_functions_without_callback_data_are_named_once(tmp_path):
    run_dir = RunDir(tmp_path)
    run_dir.raw.mkdir()
    unbound = [
        {"event": "function_bound", "target": False, "bound": False, "name": name}
        for name in ("b", "a", "b")
    ]
    write_lines(run_dir.raw / "7.journal.jsonl", [*journal(bound=True), *unbound])
    assert unbound_functions(run_dir) == ("b", "a")


def test_a_journal_that_cannot_be_read_names_none(tmp_path):
    run_dir = RunDir(tmp_path)
    run_dir.raw.mkdir()
    (run_dir.raw / "7.journal.jsonl").write_text("not json\n{}\n")
    assert unbound_functions(run_dir) == ()
