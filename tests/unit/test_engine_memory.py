import pytest

from kvtrace_cli.capture.engine_memory import kv_cache_memory_bytes
from kvtrace_cli.config import GIB, EngineConfig


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((), 8 * GIB),
        (("--seed", "1"), 8 * GIB),
        (("--kv-cache-memory-bytes", "1000"), 1000),
        (("--kv-cache-memory-bytes=1000",), 1000),
        (("--kv_cache_memory_bytes", "1000"), 1000),
        (("--kv-cache-memory-bytes", "1", "--kv-cache-memory-bytes=2"), 2),
        (("--kv-cache-memory-bytes", "2G"), 2 * GIB),
        (("--kv-cache-memory-bytes", "1.5k"), 1500),
        (("--kv-cache-memory-bytes", "much"), None),
        (("--kv-cache-memory-bytes",), None),
    ],
)
def test_the_last_word_on_memory_wins(arguments, expected):
    assert kv_cache_memory_bytes(EngineConfig(arguments=arguments)) == expected
