"""JUnit XML, Markdown and annotations: read back by parsers that are not ours, hostile text too."""

import html
import re

import pytest
from junitparser import Error, Failure, JUnitXml
from markdown_it import MarkdownIt
from rich.table import Table

from kvtrace_cli.reports.checks import Check, CheckReport, Status
from kvtrace_cli.reports.github import github_annotations
from kvtrace_cli.reports.junit import junit
from kvtrace_cli.reports.markdown import markdown

HOSTILE = "a|b `c` *d* <script> & [x](y) ~~z~~ $e$ \\ 50%"
CHECKS = (
    Check("diff", "kernels", Status.PASSED, "No difference."),
    Check("diff", "driver", Status.NOTED, "580.1, then 581.0."),
    Check("diff", "model", Status.INCONCLUSIVE, "another model"),
    Check("diff", "nodes", Status.FAILED, "40 nodes, then 41.", "line one\nline two"),
)


def report(*checks, status=Status.FAILED, **changes):
    values = {"headline": "1 difference", "emulated": False, "checks": checks or CHECKS}
    return CheckReport("a and b", "differs", status, **(values | changes))


def cases(text):
    return {case.name: case for suite in JUnitXml.fromstring(text.encode()) for case in suite}


def test_junit_counts_what_was_looked_at():
    document = JUnitXml.fromstring(junit("kvtrace diff a and b", report()).encode())
    assert document.name == "kvtrace diff a and b"
    counts = (document.tests, document.failures, document.errors, document.skipped)
    assert counts == (4, 1, 1, 0)


def test_an_inconclusive_check_is_an_error_and_never_skipped():
    found = cases(junit("t", report()))
    (error,) = found["model"].result
    (failure,) = found["nodes"].result
    assert (type(error), error.message, error.type) == (Error, "another model", "inconclusive")
    assert (type(failure), failure.message) == (Failure, "40 nodes, then 41.")
    assert failure.text == "40 nodes, then 41.\nline one\nline two"
    assert found["driver"].is_passed
    assert found["driver"].system_out == "580.1, then 581.0."
    assert {case.classname for case in found.values()} == {"kvtrace.diff"}


def test_junit_says_what_was_read_and_concluded():
    (suite,) = JUnitXml.fromstring(junit("t", report(emulated=True)).encode())
    facts = {fact.name: fact.value for fact in suite.properties()}
    assert facts.items() >= {"verdict": "differs", "emulated": "true", "subject": "a and b"}.items()


@pytest.mark.parametrize("text", ["\x00\x1b[31m\x0b", "\ud800", "\ufffe", "]]><x>&amp;", "\t\n"])
def test_junit_is_xml_whatever_a_name_holds(text):
    check = Check("diff", "nodes", Status.FAILED, f"<{text}>", text)
    found = cases(junit(text, report(check, headline=text)))
    message = found["nodes"].result[0].text.splitlines()[0]
    assert message.startswith("<")
    assert ("\ufffd" in message) == (text not in {"]]><x>&amp;", "\t\n"})


def rendered(page):
    return MarkdownIt("commonmark").enable("table").enable("strikethrough").render(page)


def told_cells(page):
    cells = re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", rendered(page), flags=re.DOTALL)
    return [html.unescape(cell) for cell in cells]


def test_markdown_tells_the_worst_first_and_folds_what_passed():
    page = markdown("kvtrace diff a and b", report())
    assert page.startswith("## ❌ kvtrace diff a and b: differs\n\n1 difference.\n")
    order = [page.index(f"`{name}`") for name in ("nodes", "model", "driver", "kernels")]
    assert order == sorted(order)
    assert page.index("Passed: 1 of 4") < page.index("`kernels`")
    assert "<pre>line one\nline two</pre>" in page


def test_markdown_shows_text_as_it_is():
    check = Check("diff", "nodes", Status.FAILED, f"{HOSTILE}\n{HOSTILE}", "</pre><b>\n\n# x")
    page = markdown(HOSTILE, report(check, notes=(HOSTILE,)))
    assert told_cells(page)[-1] == f"{HOSTILE}<br>{HOSTILE}"
    shown = rendered(page)
    escaped = html.escape(HOSTILE, quote=False)
    assert f"<h2>❌ {escaped}: differs</h2>" in shown
    assert f"<li>{escaped}</li>" in shown
    assert "<script>" not in shown
    assert "&lt;/pre&gt;&lt;b&gt;\n\n# x</pre>" in shown


def test_markdown_takes_the_tables_of_the_terminal():
    table = Table(title="Blocks", caption="GPU globaltimer")
    table.add_column("launch")
    table.add_column("blocks", justify="right")
    table.add_row("graph | [bold]node[/bold]", "280")
    page = markdown("t", report(tables=(table,)))
    assert "<summary>Blocks</summary>" in page
    assert "| launch | blocks |\n| --- | ---: |\n" in page
    assert "\n\nGPU globaltimer\n\n</details>" in page
    assert told_cells(page)[-2:] == ["graph | node", "280"]


def test_markdown_is_marked_if_emulated():
    assert "differs (EMULATED)\n" in markdown("t", report(emulated=True))


def test_markdown_stays_below_what_github_takes():
    checks = [
        Check("audit", f"rule-{n}", Status.FAILED, "m" * 9000, "d\n" * 9000) for n in range(12)
    ]
    notes = ("n" * 9000,) * 900
    assert len(markdown("t", report(*checks, notes=notes)).encode()) < 1 << 20


def unescaped(line):
    """Read a workflow command as GitHub's runner does."""
    level, title, message = re.fullmatch(r"::(\w+) title=([^:,]*)::(.*)", line).groups()
    signs = {"%0D": "\r", "%0A": "\n", "%3A": ":", "%2C": ",", "%25": "%"}
    return level, *(re.sub("%..", lambda m: signs[m[0]], text) for text in (title, message))


def test_annotations_tell_what_did_not_pass_worst_first():
    lines = [unescaped(line) for line in github_annotations("kvtrace diff a, b", report())]
    assert lines == [
        ("error", "kvtrace diff a, b: nodes failed", "40 nodes, then 41.\nline one\nline two"),
        ("error", "kvtrace diff a, b: model inconclusive", "another model"),
        ("warning", "kvtrace diff a, b: driver noted", "580.1, then 581.0."),
    ]


def test_a_verdict_that_passed_is_a_notice():
    passed = report(CHECKS[0], status=Status.PASSED, headline="nothing differs")
    (line,) = github_annotations("kvtrace diff", passed)
    assert unescaped(line) == ("notice", "kvtrace diff: differs", "Nothing differs.")


@pytest.mark.parametrize("text", ["::error::x", "a\r\nb", "100%3A", "%25", ":,::"])
def test_annotations_stay_one_command_each(text):
    check = Check("diff", "nodes", Status.FAILED, text)
    (line,) = github_annotations(text, report(check))
    assert "\n" not in line
    assert "\r" not in line
    assert unescaped(line) == ("error", f"{text}: nodes failed", text)


@pytest.mark.parametrize(("checks", "left_out"), [(10, 0), (11, 2), (30, 21)])
def test_github_shows_ten_annotations_and_the_last_says_what_is_left_out(checks, left_out):
    failed = [Check("audit", f"rule-{n}", Status.FAILED, "m") for n in range(checks)]
    lines = [unescaped(line) for line in github_annotations("t", report(*failed))]
    assert len(lines) == 10
    if left_out:
        names = [f"rule-{n}" for n in range(9, checks)]
        assert lines[-1] == ("error", f"t: {left_out} more", ", ".join(names))
