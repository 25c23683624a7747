"""The ranks of a run, as a table that is readable at 80 columns."""

from collections.abc import Iterator
from typing import Final

from rich.table import Table
from rich.text import Text

from kvtrace_cli.analysis.model import Reconciliation, rank_verdict
from kvtrace_cli.analysis.rank_model import RankAccount, RankBooks
from kvtrace_cli.reports.cells import VERDICT_STYLES, count, fault_count, marked_title, new_table

_NONE: Final = "-"
# A speculator's passes are steps of requests too.
_STEPS: Final = {"steps": ("forward", "draft"), "dummy": ("dummy",)}


def ranks_table(result: Reconciliation) -> Table:
    """Return what each rank recorded; one that was asked for and has no process is there too."""
    table = new_table(marked_title(result, "Ranks"))
    # There are many columns, of large numbers, and none of their digits may be lost.
    table.padding = (0, 1, 0, 0)
    table.add_column("rank", no_wrap=True)
    for name in ("process", "launches", "expected", "matched", "stores", "drops", *_STEPS):
        table.add_column(name, justify="right", overflow="fold")
    table.add_column("verdict", no_wrap=True)
    for account in result.ranks.accounts:
        verdict = rank_verdict(account)
        process_id = account.rank.process_id
        table.add_row(
            account.rank.name,
            _NONE if process_id is None else str(process_id),
            count(account.launches),
            count(account.expected_blocks),
            _matched(account),
            count(account.stores),
            fault_count(account.dropped),
            *(
                count(sum(account.steps.get(kind, 0) for kind in kinds))
                for kinds in _STEPS.values()
            ),
            Text(verdict.value, style=VERDICT_STYLES[verdict]),
        )
    return table


def _matched(account: RankAccount) -> Text:
    is_wrong = account.unexpected_blocks or account.matched_blocks != account.expected_blocks
    more = f" + {count(account.unexpected_blocks)}" if account.unexpected_blocks else ""
    return Text(f"{count(account.matched_blocks)}{more}", style="bold red" if is_wrong else "")


def rank_checks(ranks: RankBooks) -> Iterator[tuple[str, Text]]:
    """Yield each rule that ranks were held against, and which of them part."""
    for rule in ranks.checks:
        parted = dict.fromkeys(one.rank for one in ranks.differences if one.rule is rule)
        if parted:
            yield rule.value, Text(f"{', '.join(parted)} parts", style="bold red")
        else:
            yield rule.value, Text("as it should be")
