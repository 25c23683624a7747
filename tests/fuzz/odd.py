"""Inputs that are well formed and make no sense: whole values and records in the wrong places."""

import json
import random
from collections.abc import Iterator
from typing import Any

from kvtrace_cli.dumps import abi

HEADER_BYTES = abi.size_of(abi.HEADER_STRUCT)
RECORDS = {".events.kvt": abi.EVENTS_STRUCT, ".launches.kvt": abi.LAUNCHES_STRUCT}
NUMBERS = (0, 1, 2, 3, 15, 16, 17, 48, 0xFFFF, 0x10000, 2**31 - 1, 2**32 - 1, 2**62)
# Where a value is a size, an edge of 64 bits only ever meets a check, so most stay small.
SMALL = 6
TEXTS = (
    "",
    "x",
    "forward",
    "dummy",
    "draft",
    "k",
    "block",
    "kv",
    "dim",
    "[bold]",
    "\x1b[0m\n",
    "\ud800",
)
FLAGS = (True, False, None)


def odd(name: str, data: bytes, chance: random.Random) -> bytes:
    """Return the file with one to three values, lines or records that do not belong.

    Args:
        name: of the seed, which says what the file is.
        data: the seed, not compressed.
        chance: where the oddities come from.
    """
    struct = next((found for end, found in RECORDS.items() if name.endswith(end)), None)
    if struct is not None:
        return odd_records(data, struct, chance)
    if name.endswith(".jsonl"):
        return odd_lines(data, chance)
    whole = json.loads(data)
    for _ in range(chance.randint(1, 3)):
        change_value(whole, chance)
    return json.dumps(whole).encode()


def odd_records(data: bytes, struct: str, chance: random.Random) -> bytes:
    """Put numbers, or those of other records, into fields of records."""
    damaged = bytearray(data)
    size = abi.size_of(struct)
    count = (len(data) - HEADER_BYTES) // size
    for _ in range(chance.randint(1, 3)):
        field = chance.choice([one for one in abi.fields(struct) if "tag" not in one.name])
        at, other = (HEADER_BYTES + chance.randrange(count) * size + field.offset for _ in range(2))
        number = int.from_bytes(damaged[other : other + field.size], "little")
        if chance.random() < 1 / 2:
            number = (number + chance.choice((-1, 1, *NUMBERS))) % 2 ** (8 * field.size)
        damaged[at : at + field.size] = number.to_bytes(field.size, "little")
    return bytes(damaged)


def odd_lines(data: bytes, chance: random.Random) -> bytes:
    """Lose, repeat or exchange lines of JSON, or change a value of one."""
    lines = [json.loads(line) for line in data.splitlines()]
    for _ in range(chance.randint(1, 3)):
        at, other = (chance.randrange(len(lines)) for _ in range(2))
        what = chance.randrange(8)
        if what == 0 and len(lines) > 1:
            del lines[at]
        elif what == 1:
            lines.insert(at, json.loads(json.dumps(lines[other])))
        else:
            change_value(lines[at], chance)
        number_steps(lines)
    return "".join(json.dumps(line) + "\n" for line in lines).encode()


def number_steps(lines: list[Any]) -> None:
    """Let the stamps of steps rise by one, as else nothing behind the check is reached."""
    steps = [one for one in lines if isinstance(one, dict) and one.get("event") == "step"]
    for stamp, step in enumerate(steps, 1):
        if isinstance(step.get("step_stamp"), int):
            step["step_stamp"] = stamp


def change_value(whole: Any, chance: random.Random) -> None:
    """Change one value somewhere in a JSON value to one of its kind, or lose or repeat it."""
    places = list(_places(whole))
    if not places:
        return
    holder, key = chance.choice(places)
    value, what = holder[key], chance.randrange(10)
    if what == 0:
        del holder[key]
    elif what == 1 and isinstance(holder, list):
        holder.insert(key, json.loads(json.dumps(value)))
    elif what == 2:
        other, at = chance.choice(places)
        holder[key] = json.loads(json.dumps(other[at]))
    else:
        holder[key] = _like(value, chance)


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    keys = (
        value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    )
    for key in keys:
        yield value, key
        yield from _places(value[key])


def _like(value: Any, chance: random.Random) -> Any:
    if isinstance(value, bool) or value is None:
        return chance.choice(FLAGS)
    if isinstance(value, int):
        near = max(0, value + chance.choice((-1, 1)))
        return chance.choice((near, chance.choice(NUMBERS[:SMALL]), chance.choice(NUMBERS)))
    if isinstance(value, str):
        return chance.choice(TEXTS)
    return [] if isinstance(value, list) else {}
