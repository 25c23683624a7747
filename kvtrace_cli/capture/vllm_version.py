"""Which vLLM an interpreter has, and whether kvtrace knows it."""

import json
import re
import subprocess
from pathlib import Path

OLDEST_VLLM = (0, 20)
NEWEST_VLLM = (0, 33)
_PROBE_TIMEOUT_S = 60
_VERSION_PROBE = """
import importlib.metadata as m, json, platform
found = {"python": platform.python_version()}
for name in ("vllm", "torch"):
    try:
        found[name] = m.version(name)
    except m.PackageNotFoundError:
        found[name] = None
print(json.dumps(found))
"""


def is_supported_vllm(version: str) -> bool:
    """Say whether a version such as 0.26.0+cu130 is one that kvtrace knows."""
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if numbers is None:
        return False
    return OLDEST_VLLM <= (int(numbers.group(1)), int(numbers.group(2))) <= NEWEST_VLLM


def probe_versions(python: Path) -> dict[str, str | None]:
    """Ask an interpreter for its own version and those of vllm and torch; null if absent.

    Raises:
        OSError: it cannot be started.
        subprocess.SubprocessError: it takes too long.
        ValueError: it fails, or answers something else.
    """
    answer = subprocess.run(
        [str(python), "-c", _VERSION_PROBE],
        capture_output=True,
        text=True,
        timeout=_PROBE_TIMEOUT_S,
        check=False,
    )
    if answer.returncode != 0:
        reason = answer.stderr.strip().splitlines()[-1:] or ["no message"]
        raise ValueError(f"exit status {answer.returncode}: {reason[0]}")
    versions = json.loads(answer.stdout)
    if not isinstance(versions, dict):
        raise ValueError(f"unexpected answer {answer.stdout[:80]!r}")  # noqa: TRY004  one except
    return versions
