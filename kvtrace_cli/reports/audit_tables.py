"""What an audit found, readable at 80 columns: counts, findings with evidence, conclusion."""

from collections.abc import Iterator

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from kvtrace_cli.analysis.audit_model import (
    Audit,
    AuditVerdict,
    Finding,
    Judged,
    RowCount,
    RuleCount,
)
from kvtrace_cli.analysis.rank_model import process_title
from kvtrace_cli.reports.cells import counted

_STYLES = {
    AuditVerdict.CLEAN: "bold green",
    AuditVerdict.FINDINGS: "bold red",
    AuditVerdict.CANNOT_JUDGE: "bold yellow",
}
# Rows of a rule whose first finding is shown in full; the document has all.
_SHOWN = 3


def audit_tables(result: Audit) -> Iterator[RenderableType]:
    """Yield what `kvtrace audit` prints, top to bottom; the conclusion comes last."""
    title = "KV writes against the slots that the scheduler assigned"
    yield Text(f"{title} (EMULATED)" if result.emulated else title, style="italic")
    # Without a layer nothing was looked at: zeros would say that there was nothing.
    if result.judged.layers:
        yield rows_table(result)
        yield Text(_scope(result.judged))
    for count in result.rules:
        yield _rule_title(count)
        yield _evidence(result, count)
    yield _conclusion(result)
    if result.doubts or result.notes:
        yield _remarks(result)


def rows_table(result: Audit) -> Table:
    """Return the rows of each owner, and what they wrote."""
    table = Table(box=None, padding=(0, 1), pad_edge=False, header_style="bold")
    table.add_column("rows")
    for name in ("in steps", "KV writes", "stores"):
        table.add_column(name, justify="right")
    for count in result.judged.owners:
        table.add_row(*_row_cells(count))
    if result.judged.ownerless_stores:
        table.add_row("no step", "-", "-", f"{result.judged.ownerless_stores:,}")
    return table


def _row_cells(count: RowCount) -> tuple[str, ...]:
    rows = "-" if count.rows is None else f"{count.rows:,}"
    return count.owner, rows, f"{count.writes:,}", f"{count.stores:,}"


def _scope(judged: Judged) -> str:
    return (
        f"{counted(judged.expected_writes, 'write')} expected, of "
        f"{counted(judged.requests, 'request')}, {counted(judged.layers, 'layer')}, "
        f"{counted(judged.processes, 'process', 'processes')}; "
        f"{judged.forward_steps:,} forward, {judged.dummy_steps:,} dummy and "
        f"{judged.draft_steps:,} draft steps"
        + (f"; {judged.compared_ranks:,} ranks compared" if judged.compared_ranks else "")
    )


def _rule_title(count: RuleCount) -> Text:
    over = [counted(count.rows, "row"), counted(count.steps, "step")]
    if count.layers:
        over.append(counted(count.layers, "layer"))
    if count.requests:
        over.append(counted(count.requests, "request"))
    return Text.assemble(
        (count.rule.value, "bold red"),
        f": {counted(count.findings, 'finding')} ({', '.join(over)})",
    )


def _evidence(result: Audit, count: RuleCount) -> Table:
    grid = _hanging()
    samples = result.samples(count.rule, _SHOWN)
    for finding in samples:
        grid.add_row(" -", Text(f"{finding.text}\n{evidence(finding)}"))
    more = count.findings - len(samples)
    if more:
        grid.add_row("  ", Text(f"and {more:,} more; --json has them all"))
    return grid


def evidence(finding: Finding) -> str:
    """Return where and when a finding was seen, in one line."""
    parts = [
        f"step {finding.step_stamp} ({finding.step_kind})",
        _known("layer", finding.layer_index),
        _known("row", finding.row),
        _known("expected slot", finding.expected_slot),
        _known("written slot", finding.written_slot),
        _place(finding),
        "" if finding.address is None else f"address {finding.address:#x}",
        _event(finding),
        process_title(finding.process_id, {finding.process_id: finding.rank}),
    ]
    return ", ".join(part for part in parts if part)


def _known(name: str, value: int | None) -> str:
    return "" if value is None else f"{name} {value}"


def _place(finding: Finding) -> str:
    if finding.kv_block_id is None:
        return ""
    return f"KV block {finding.kv_block_id} offset {finding.offset}"


def _event(finding: Finding) -> str:
    if finding.sequence is None:
        return ""
    more = f" and {finding.stores - 1} more" if finding.stores > 1 else ""
    return f"event {finding.sequence}{more} of context {finding.context_index}"


def _conclusion(result: Audit) -> Text:
    return Text.assemble((result.verdict.value, _STYLES[result.verdict]), ": ", headline(result))


def headline(result: Audit) -> str:
    """Return what the verdict is about, in one sentence without a full stop."""
    findings = sum(count.findings for count in result.rules)
    emulated = " (emulated)" if result.emulated else ""
    return (
        f"{counted(findings, 'finding')}; "
        f"{counted(result.judged.expected_writes, 'expected write')} and "
        f"{counted(sum(count.writes for count in result.judged.owners), 'KV write')} "
        f"looked at{emulated}"
    )


def _remarks(result: Audit) -> Table:
    grid = _hanging()
    for doubt in result.doubts:
        grid.add_row(" -", Text(doubt))
    for note in result.notes:
        grid.add_row(" note:", Text(note))
    return grid


def _hanging() -> Table:
    grid = Table.grid(padding=(0, 1))
    grid.add_column()
    # Request ids are long, and none of their letters may be lost.
    grid.add_column(overflow="fold")
    return grid
