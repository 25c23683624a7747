"""Checks as JUnit XML, which GitHub, GitLab and Jenkins read through their own readers."""

import re
from collections import defaultdict
from io import BytesIO

from junitparser import Error, Failure, JUnitXml, TestCase, TestSuite

from kvtrace_cli import __version__
from kvtrace_cli.reports.checks import Check, CheckReport, Status

# An inconclusive check is an error and not skipped: readers count skipped ones as success.
_RESULTS = {Status.FAILED: Failure, Status.INCONCLUSIVE: Error}
# XML 1.0 can hold these in no form; the library writes them as they are.
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


def junit(title: str, report: CheckReport) -> str:
    """Return the report as an XML document, one suite for each group of checks.

    Args:
        title: of the document: the command and what it read.
        report: its checks; each is a test of the class `kvtrace.<group>`.
    """
    document = JUnitXml(_legal(title))
    groups = defaultdict(list)
    for check in report.checks:
        groups[check.group].append(_case(check))
    for group, cases in groups.items():
        document.add_testsuite(_suite(group, cases, report))
    document.update_statistics()
    written = BytesIO()
    document.write(written, pretty=True)
    return written.getvalue().decode("utf-8")


def _suite(group: str, cases: list[TestCase], report: CheckReport) -> TestSuite:
    suite = TestSuite(f"kvtrace {group}")
    facts = {
        "subject": report.subject,
        "verdict": report.verdict,
        "headline": report.headline,
        "emulated": str(report.emulated).lower(),
        "kvtrace_version": __version__,
    }
    for name, value in facts.items():
        suite.add_property(name, _legal(value))
    suite.add_testcases(cases)
    return suite


def _case(check: Check) -> TestCase:
    """Tell a bad check in its result's text too: GitLab shows no message attribute."""
    case = TestCase(check.name, classname=f"kvtrace.{check.group}", time=0.0)
    message = _legal(check.message)
    text = _legal(f"{check.message}\n{check.detail}".rstrip())
    if check.status in _RESULTS:
        result = _RESULTS[check.status](message, check.status.value)
        result.text = text
        case.result = result
    else:
        case.system_out = text
    return case


def _legal(text: str) -> str:
    return _NOT_XML.sub(_REPLACEMENT, text)
