"""How much memory the engine will take for its KV cache, as the last argument says."""

import re
from typing import Final

from kvtrace_cli.capture.engine_arguments import option_value
from kvtrace_cli.config import EngineConfig

_OPTION: Final = "--kv-cache-memory-bytes"
_NUMBER: Final = re.compile(r"(\d+(?:\.\d+)?)([kKmMgGtT]?)")
# vLLM's: a small letter is a power of 1000, a capital one of 1024.
_POWERS: Final = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def kv_cache_memory_bytes(engine: EngineConfig) -> int | None:
    """Return the bytes that the engine is asked to take for its KV cache.

    What the user gives after `--` comes last and so wins; null if it cannot be read.
    """
    text = option_value(engine.arguments, _OPTION)
    return engine.kv_cache_memory_bytes if text is None else _bytes(text)


def _bytes(text: str) -> int | None:
    match = _NUMBER.fullmatch(text.strip())
    if match is None:
        return None
    number, letter = match.groups()
    base = 1024 if letter.isupper() else 1000
    return int(float(number) * base ** _POWERS[letter.lower()])
