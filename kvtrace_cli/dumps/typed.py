"""A JSON object -> a frozen dataclass, each field checked for its kind, in any depth."""

import math
from dataclasses import MISSING, fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

_T = TypeVar("_T")


class KindError(ValueError):
    """A value of a document is not of the kind that it must be; says where."""


def from_document(kind: type[_T], value: Any, where: str) -> _T:
    """Return a dataclass made from a JSON object.

    Args:
        kind: the dataclass; its fields may be numbers, texts, truth values, tuples, other such
            dataclasses, unions of these with None, and mappings of anything.
        value: what JSON gave. Fields that `kind` does not know are ignored, and one with a default
            may be absent.
        where: names the object in errors.

    Raises:
        KindError: a field is missing or of another kind.
    """
    made: _T = _made(kind, value, where)
    return made


def _made(kind: Any, value: Any, where: str) -> Any:
    if is_dataclass(kind):
        return _object(kind, value, where)
    origin, parts = get_origin(kind), get_args(kind)
    if origin is UnionType:
        wanted = next(part for part in parts if part is not NoneType)
        return None if value is None else _made(wanted, value, where)
    if origin is tuple:
        return _tuple(parts, value, where)
    if origin is dict:
        return dict(_checked(value, dict, where))
    if kind is float:
        return _real(value, where)
    return _checked(value, kind, where)


def _object(kind: Any, value: Any, where: str) -> Any:
    document: dict[str, Any] = _checked(value, dict, where)
    hints = get_type_hints(kind)
    found = {}
    for one in fields(kind):
        if one.name in document:
            found[one.name] = _made(hints[one.name], document[one.name], f"{where}.{one.name}")
        elif one.default is MISSING:
            raise KindError(f"{where} has no {one.name}")
    return kind(**found)


def _tuple(parts: tuple[Any, ...], value: Any, where: str) -> tuple[Any, ...]:
    items = _checked(value, list, where)
    kinds = [parts[0]] * len(items) if parts[-1] is Ellipsis else list(parts)
    if len(items) != len(kinds):
        raise KindError(f"{where} has {len(items)} items, expected {len(kinds)}")
    pairs = zip(kinds, items, strict=True)
    return tuple(
        _made(kind, item, f"{where}[{number}]") for number, (kind, item) in enumerate(pairs)
    )


def _real(value: Any, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise KindError(f"{where} is {_short(value)}, expected a number")
    return float(value)


def _checked(value: Any, kind: type, where: str) -> Any:
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise KindError(f"{where} is {_short(value)}, expected {_NAMES[kind]}")
    if isinstance(value, int) and value < 0:
        raise KindError(f"{where} is {value}, expected 0 or more")
    return value


_NAMES = {
    bool: "true or false",
    dict: "an object",
    int: "a whole number",
    list: "a list",
    str: "a text",
}


def _short(value: Any, longest: int = 40) -> str:
    text = repr(value)
    return text if len(text) <= longest else f"{text[:longest]}..."
