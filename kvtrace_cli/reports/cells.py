"""What all tables have in common."""

from collections.abc import Mapping
from typing import Final

from rich.table import Table
from rich.text import Text

from kvtrace_cli.analysis.model import FileBooks, Reconciliation, Verdict

VERDICT_STYLES: Final = {
    Verdict.AGREES: "bold green",
    Verdict.MISMATCH: "bold red",
    Verdict.INCONCLUSIVE: "bold yellow",
}


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


def file_name(books: FileBooks, rank_names: Mapping[int, str]) -> str:
    """Write a file's name, with the rank of its process if that has a name."""
    rank = rank_names.get(books.process_id)
    return f"{books.name} ({rank})" if rank else books.name


def has_unpatched(result: Reconciliation) -> bool:
    """Say whether any launch was not patched, so that its blocks have no events."""
    section = result.whole_life
    return bool(
        section.graph_nodes.blocks_before_patching + section.plain_launches.blocks_before_patching
    )


def counted(number: int, name: str, plural: str | None = None) -> str:
    """Write a number with what it counts."""
    return f"{number:,} {name if number == 1 else plural or f'{name}s'}"
