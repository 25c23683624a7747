"""The tables of rows and requests: readable at 80 columns, with what is missing shown first."""

import io

import pytest
from builders import Trace, attributed, flags, journal, kv_address, layout, request, started, step
from rich.console import Console

from kvtrace_cli.reports.tables import reconciliation_tables


def printed(result, attribution):
    console = Console(width=80, record=True, file=io.StringIO())
    for table in reconciliation_tables(result, attribution):
        console.print(table)
        console.print()
    return console.export_text()


def batch(tmp_path, ids, *, silent=(), stores=True):
    """Run one step with a token of each request; those in `silent` do not store."""
    trace = Trace(changes={"flags": flags("CLOSED", "PATCHED", "WRITES")} if stores else {})
    requests = [request(n, prompt_token_ids=[1], returned_token_ids=[2]) for n in range(len(ids))]
    for layer in range(2):
        launch = trace.plain((len(ids) + 1, 1, 1), step_stamp=1)
        for block in launch.blocks:
            trace.enter(launch, block)
            if stores and block[0] < len(ids) and ids[block[0]] not in silent:
                for part in "KV":
                    trace.store(launch, block, kv_address(16 * block[0], layer, part))
    line = step(1, requests=[(name, 1, 0) for name in ids], padded_rows=len(ids) + 1)
    steps = [started(), line]
    return printed(*attributed(tmp_path, trace, steps=steps, layout=layout(2), requests=requests))


def ours(count):
    return [f"cmpl-kvtrace-{number}-0-1a2b3c4d" for number in range(count)]


def rows_of(text, title):
    """Return the words of each row of the table with this title."""
    _, _, rest = text.partition(title)
    return [line.split() for line in rest.split("\n\n")[0].splitlines()[1:]]


def test_rows_and_requests_at_80_columns(tmp_path):
    text = batch(tmp_path, ours(2))
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    assert rows_of(text, "Rows of the batch, by owner")[1:] == [
        ["measured", "requests", "entries", "4", "2", "0", "0", "0"],
        ["stores", "8", "0", "0", "0", "0"],
        ["whole", "life", "entries", "4", "2", "0", "0", "0"],
        ["stores", "8", "0", "0", "0", "0"],
    ]
    assert rows_of(text, "Token positions x layers, by request")[1:] == [
        [index, "1", "0", "1", "2", "2", "2", "2", "-"] for index in "01"
    ]
    assert "stores of entered blocks 8 of 8" in " ".join(text.split())
    assert "6 expected = 6 written + 0 dropped; 8 stores" in text


def test_without_stores_there_are_dashes(tmp_path):
    text = batch(tmp_path, ours(1), stores=False)
    assert rows_of(text, "Token positions x layers")[1][-3:] == ["-", "-", "-"]
    assert "stores" not in text


def test_what_lacks_something_is_among_the_twenty_that_are_shown(tmp_path):
    names = ours(25)
    text = batch(tmp_path, names, silent={names[23]})
    shown = rows_of(text, "Token positions x layers")[1:]
    assert [row[0] for row in shown] == [*map(str, range(19)), "23"]
    assert shown[-1][-4:] == ["2", "K,", "2", "V"]
    assert "and 5 more requests, all complete; --json has them all" in text


def test_more_than_twenty_that_lack_something(tmp_path):
    names = ours(22)
    text = batch(tmp_path, names, silent=set(names))
    assert "and 2 more requests, 2 of them incomplete; --json has them all" in text


def test_the_engines_own_requests_are_one_line_and_others_keep_their_id(tmp_path):
    names = ["_warmup_0_", "_warmup_1_", "cmpl-somebody-elses-very-long-name-0-1a2b3c4d"]
    text = batch(tmp_path, names, silent={"_warmup_1_"})
    shown = rows_of(text, "Token positions x layers")[1:]
    assert shown[0][0] == "cmpl-somebod.."
    own = [word for row in shown[1:] for word in row]
    words = ("engine's", "(2)", "-", "0", "2", "2", "4", "2", "2", "1", "incomplete")
    assert tuple(own) == words
    assert max(map(len, text.splitlines())) <= 80


def test_without_steps_there_is_a_note_and_no_table(tmp_path):
    trace = Trace()
    trace.enter_all(trace.plain())
    text = printed(*attributed(tmp_path, trace))
    assert "No engine steps were recorded, so no row is given to a request." in text
    assert "by owner" not in text
    assert "by request" not in text


def test_an_emulated_run_says_so_in_every_title(tmp_path):
    trace = Trace(changes={"flags": flags("CLOSED", "PATCHED", "EMULATED")})
    trace.enter_all(trace.plain(step_stamp=1))
    steps = [started(), step(1, requests=[("a", 1, 0)])]
    text = printed(*attributed(tmp_path, trace, steps=steps))
    assert "by owner (EMULATED)" in text
    assert "by request (EMULATED)" in text


def test_several_measured_requests_are_called_so(tmp_path):
    trace = Trace()
    trace.enter_all(trace.node(0, 1))
    words = printed(*attributed(tmp_path, trace, requests=[request(0), request(1)]))
    assert "measured requests  graph" in words
    assert "Graph replays, measured requests" in words
    assert "entered during the measured requests" in words


@pytest.mark.parametrize("known", [True, False])
def test_books_say_whether_the_drops_were_stores(tmp_path, known):
    trace = Trace(changes={"flags": flags("CLOSED", "PATCHED", "WRITES")})
    launch = trace.plain((2, 1, 1))
    trace.enter(launch)
    trace.drop()
    trace.drop_stores(3)
    end = {"event": "ended", "context_index": 0} | ({"stores_dropped": 3} if known else {})
    text = printed(*attributed(tmp_path, trace, journal_lines=[*journal(), end]))
    counted = "2 expected = 1 written + 1 dropped"
    open_books = "2 expected ? 1 written + 4 dropped, stores among them"
    assert (counted if known else open_books) in " ".join(text.split())
