"""What all tables have in common."""

from rich.table import Table
from rich.text import Text

from kvtrace_cli.analysis.model import Reconciliation


def new_table(title: str) -> Table:
    """Return an empty table in the style of all."""
    return Table(
        title=title,
        title_justify="left",
        box=None,
        padding=(0, 1),
        pad_edge=False,
        header_style="bold",
    )


def marked_title(result: Reconciliation, title: str) -> str:
    """Say in a title if the run was emulated."""
    return f"{title} (EMULATED)" if result.emulated else title


def count(value: int) -> str:
    """Write a number with its thousands set apart."""
    return f"{value:,}"


def fault_count(value: int) -> Text:
    """Write a number that should be 0."""
    return Text(count(value), style="bold red" if value else "")
