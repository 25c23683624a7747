"""Fields of a JSON object, each checked for its kind before anybody counts with it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from kvtrace_cli.errors import RunDirError

UINT32 = 2**32 - 1
UINT64 = 2**64 - 1

_T = TypeVar("_T")


@dataclass(frozen=True)
class Checked:
    """One object of a file; `where` says which part of the file it is, such as `line 3`."""

    path: Path
    where: str
    record: dict[str, Any]

    def fault(self, found: str, expected: str) -> RunDirError:
        """Return the error for something found in this object that cannot be."""
        return RunDirError(
            f"{self.path}: {self.where} has {found}, expected {expected}; the file is damaged or "
            "of another version, copy it again or record again"
        )

    def number(self, name: str, largest: int = UINT32, smallest: int = 0) -> int:
        """Return a whole number that must be there."""
        return self.as_number(self.record.get(name), name, largest, smallest)

    def optional_number(self, name: str, largest: int = UINT32) -> int | None:
        """Return a whole number, or None if it is absent or null."""
        return None if self.record.get(name) is None else self.number(name, largest)

    def text(self, name: str, known: Sequence[str] = ()) -> str:
        """Return a text that must be there, one of `known` if any are given."""
        value = self.as_text(self.record.get(name), name)
        if known and value not in known:
            raise self.fault(f"{name} {value!r}", f"one of {', '.join(known)}")
        return value

    def optional_text(self, name: str) -> str | None:
        """Return a text, or None if it is absent or null."""
        return None if self.record.get(name) is None else self.text(name)

    def optional_flag(self, name: str) -> bool:
        """Return true or false; false if it is absent or null."""
        value = self.record.get(name)
        if not isinstance(value, bool | None):
            raise self.fault(f"{name} {_short(value)}", "true or false")
        return bool(value)

    def items(self, name: str, item: Callable[[Any, str], _T]) -> tuple[_T, ...]:
        """Return a list of items that `item` checks; empty if it is absent or null."""
        value = self.record.get(name)
        return () if value is None else self.as_list(value, name, item)

    def as_list(self, value: Any, name: str, item: Callable[[Any, str], _T]) -> tuple[_T, ...]:
        """Return the items of a list, each checked."""
        if not isinstance(value, list):
            raise self.fault(f"{name} {_short(value)}", "a list")
        return tuple(item(part, f"{name}[{position}]") for position, part in enumerate(value))

    def as_number(self, value: Any, name: str, largest: int = UINT32, smallest: int = 0) -> int:
        """Return a whole number within its limits."""
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        if not (is_whole and smallest <= value <= largest):
            raise self.fault(
                f"{name} {_short(value)}", f"a whole number from {smallest} to {largest}"
            )
        return int(value)

    def as_text(self, value: Any, name: str) -> str:
        """Return a text."""
        if not isinstance(value, str):
            raise self.fault(f"{name} {_short(value)}", "a text")
        return value

    def as_parts(self, value: Any, name: str, count: int) -> list[Any]:
        """Return the parts of a list that must have so many."""
        if not isinstance(value, list) or len(value) != count:
            raise self.fault(f"{name} {_short(value)}", f"a list of {count}")
        return value


def _short(value: Any, longest: int = 60) -> str:
    text = repr(value)
    return text if len(text) <= longest else f"{text[:longest]}..."
