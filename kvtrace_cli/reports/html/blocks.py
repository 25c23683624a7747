"""What a page is made of: sections of blocks, all of plain text that the template escapes."""

from dataclasses import dataclass
from typing import Any, ClassVar

from rich.table import Table as RichTable
from rich.text import Text as RichText

_FAULT_STYLE = "red"


@dataclass(frozen=True)
class Cell:
    """One cell; `fault` marks what should not be."""

    text: str
    fault: bool = False


@dataclass(frozen=True)
class Table:
    """A table; `numeric` says of each column whether it holds numbers, `head` is empty for pairs.

    The first cell of each row heads it.
    """

    kind: ClassVar[str] = "table"
    title: str
    head: tuple[str, ...]
    numeric: tuple[bool, ...]
    rows: tuple[tuple[Cell, ...], ...]


@dataclass(frozen=True)
class Text:
    """A paragraph."""

    kind: ClassVar[str] = "text"
    text: str


@dataclass(frozen=True)
class Items:
    """A list of sentences."""

    kind: ClassVar[str] = "items"
    items: tuple[str, ...]


@dataclass(frozen=True)
class Details:
    """Long text that is folded away until it is asked for."""

    kind: ClassVar[str] = "details"
    summary: str
    text: str


@dataclass(frozen=True)
class Chart:
    """A picture: its Vega-Lite `spec`, what it shows in words (`alt`), and a caption.

    `legend` has pairs of a name and a CSS colour. `data` has the columns of each set that the
    specification names; as rows they would be several times as large, and the page makes rows of
    them. Below `min_width` pixels it is scrolled, above `max_width` it grows no more (0: no limit).
    """

    kind: ClassVar[str] = "chart"
    title: str
    legend: tuple[tuple[str, str], ...]
    spec: dict[str, Any]
    data: dict[str, dict[str, list[Any]]]
    alt: str
    caption: tuple[str, ...]
    min_width: int = 0
    max_width: int = 0


@dataclass(frozen=True)
class Choice:
    """Pictures of which one is seen at a time: pairs of a name and what it stands for.

    Without a script all are seen, one below the other.
    """

    kind: ClassVar[str] = "choice"
    label: str
    options: tuple[tuple[str, "Block"], ...]


Block = Table | Text | Items | Details | Chart | Choice


@dataclass(frozen=True)
class Part:
    """What a section says of one run; `name` is empty if there is only one."""

    name: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class Section:
    """A heading with what is under it; `anchor` is its name in links."""

    anchor: str
    title: str
    parts: tuple[Part, ...]


def from_rich(table: RichTable) -> Table:
    """Return the same table as the terminal shows."""
    columns = [[_cell(cell) for cell in column.cells] for column in table.columns]
    head = tuple(_plain(column.header) for column in table.columns)
    return Table(
        title=_plain(table.title or ""),
        head=head if table.show_header and any(head) else (),
        numeric=tuple(column.justify == "right" for column in table.columns),
        rows=tuple(zip(*columns, strict=True)),
    )


def _cell(value: object) -> Cell:
    fault = isinstance(value, RichText) and _FAULT_STYLE in str(value.style)
    return Cell(_plain(value), fault)


def _plain(value: object) -> str:
    return value.plain if isinstance(value, RichText) else str(value)
