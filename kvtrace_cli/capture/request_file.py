"""A file of requests, one JSON object a line -> what is sent."""

import json
import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NoReturn

from kvtrace_cli.config import SAFE_TOKEN_IDS, RequestSpec, Role
from kvtrace_cli.errors import ConfigError

MOST_TOKENS: Final = 1 << 20
_LARGEST_TOKEN_ID: Final = (1 << 31) - 1
_SEED_FIELDS: Final = ("seed", "shared_prefix_tokens", "prefix_seed")
_FIELDS: Final = (
    *("prompt_token_ids", "prompt_tokens", *_SEED_FIELDS),
    *("max_tokens", "stream", "start_after_s"),
)
_REQUIRED: Final = object()


def read_request_file(path: Path) -> tuple[RequestSpec, ...]:
    """Read the requests of a file, in its order; README.md describes the fields.

    Raises:
        ConfigError: it cannot be read, has no request, or a line is none; the message has the
            line, what was found and what is expected.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ConfigError(
            f"--requests {path}: cannot be read ({error.strerror}); expected a file with one JSON "
            "object a line"
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"--requests {path}: no UTF-8 text ({error.reason})") from error
    specs = tuple(
        _Line(path, number, text).spec()
        for number, text in enumerate(lines, start=1)
        if text.strip()
    )
    if not specs:
        raise ConfigError(
            f"--requests {path}: found no request, expected one JSON object a line, such as "
            '{"prompt_tokens": 20, "max_tokens": 8}'
        )
    return specs


class _Line:
    """One line, checked field by field."""

    def __init__(self, path: Path, number: int, text: str) -> None:
        self._where = f"{path}: line {number}"
        self._number = number
        try:
            fields = json.loads(text, object_pairs_hook=self._without_repeats)
        except json.JSONDecodeError as error:
            raise ConfigError(
                f"{self._where}: no JSON ({error.msg}); expected one JSON object a line"
            ) from error
        if not isinstance(fields, dict):
            raise ConfigError(
                f"{self._where}: found {_shown(fields)}, expected a JSON object such as "
                '{"prompt_tokens": 20, "max_tokens": 8}'
            )
        self._fields: dict[str, Any] = fields

    def spec(self) -> RequestSpec:
        """Return the request that the line stands for."""
        unknown = [name for name in self._fields if name not in _FIELDS]
        if unknown:
            raise ConfigError(
                f"{self._where}: unknown field {unknown[0]!r}; expected {', '.join(_FIELDS)}"
            )
        return RequestSpec(
            role=Role.MEASURED,
            prompt_token_ids=self._prompt(),
            max_tokens=self._whole("max_tokens", 1, MOST_TOKENS),
            stream=self._flag("stream"),
            start_after_s=self._seconds("start_after_s"),
        )

    def _prompt(self) -> tuple[int, ...]:
        if ("prompt_token_ids" in self._fields) == ("prompt_tokens" in self._fields):
            raise ConfigError(
                f"{self._where}: expected either prompt_token_ids, a list, or prompt_tokens, how "
                "many to make; give one of them"
            )
        if "prompt_token_ids" in self._fields:
            return self._given_prompt()
        count = self._whole("prompt_tokens", 1, MOST_TOKENS)
        shared = self._whole("shared_prefix_tokens", 0, count, default=0)
        if "prefix_seed" in self._fields and not shared:
            raise ConfigError(
                f"{self._where}: prefix_seed without shared_prefix_tokens, so nothing would use "
                "it; say how many tokens are shared"
            )
        prefix_seed = self._whole("prefix_seed", 0, _LARGEST_TOKEN_ID, default=0)
        # By default the line's number: no two prompts of a file are alike.
        seed = self._whole("seed", 0, _LARGEST_TOKEN_ID, default=self._number)
        prefix = _made_ids(f"prefix {prefix_seed}", shared)
        return (*prefix, *_made_ids(f"prompt {seed}", count - shared))

    def _given_prompt(self) -> tuple[int, ...]:
        for name in _SEED_FIELDS:
            if name in self._fields:
                raise ConfigError(
                    f"{self._where}: {name} is of no use beside prompt_token_ids; "
                    "leave it out, or give prompt_tokens instead of the ids"
                )
        ids = self._fields["prompt_token_ids"]
        if not isinstance(ids, list) or not ids:
            self._refuse("prompt_token_ids", "a list of one token id or more")
        for token in ids:
            if not _is_whole(token) or not 0 <= token <= _LARGEST_TOKEN_ID:
                raise ConfigError(
                    f"{self._where}: prompt_token_ids: found {_shown(token)} in it, expected token "
                    f"ids from 0 to {_LARGEST_TOKEN_ID}"
                )
        return tuple(ids)

    def _whole(self, name: str, least: int, most: int, default: object = _REQUIRED) -> int:
        value = self._fields.get(name, default)
        if value is _REQUIRED:
            raise ConfigError(f"{self._where}: no {name}, which every request needs; add it")
        if not _is_whole(value) or not least <= value <= most:
            self._refuse(name, f"a whole number from {least} to {most}")
        return int(value)

    def _flag(self, name: str) -> bool:
        value = self._fields.get(name, False)
        if not isinstance(value, bool):
            self._refuse(name, "true or false")
        return bool(value)

    def _seconds(self, name: str) -> float:
        value = self._fields.get(name, 0.0)
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not is_number or not math.isfinite(value) or value < 0:
            self._refuse(name, "seconds, 0 or more")
        return float(value)

    def _refuse(self, name: str, expected: str) -> NoReturn:
        found = _shown(self._fields[name])
        raise ConfigError(f"{self._where}: {name}: found {found}, expected {expected}")

    def _without_repeats(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        fields = dict(pairs)
        if len(fields) < len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            raise ConfigError(f"{self._where}: {twice!r} is there twice; give it once")
        return fields


def _made_ids(seed: str, count: int) -> Iterator[int]:
    """Yield ids that depend on the seed alone; a longer answer begins with the shorter one."""
    chance = random.Random(seed)  # noqa: S311  no secret
    # random() is the one method whose answers Python promises to keep.
    return (SAFE_TOKEN_IDS[int(chance.random() * len(SAFE_TOKEN_IDS))] for _ in range(count))


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _shown(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."  # noqa: PLR2004  one line of an error
