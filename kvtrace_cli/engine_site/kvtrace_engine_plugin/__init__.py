"""kvtrace inside vLLM: records what each step runs, for whom, and where the KV tensors are.

Standard library only, Python 3.9 or newer, and no import of vLLM: this runs in every process of the
engine, and does nothing in those that run no model.
"""

from __future__ import annotations

import os
import sys

STEPS_VARIABLE = "KVTRACE_STEPS"

__all__ = ["register"]


def register() -> None:
    """Wait for the engine's model runners and hook them: vLLM's entry point.

    Does nothing unless KVTRACE_STEPS names the run's raw directory. Never raises, and may be called
    again.
    """
    directory = os.environ.get(STEPS_VARIABLE)
    if not directory:
        return
    try:
        from .installing import install  # noqa: PLC0415  nothing is imported in an untraced engine

        install(directory)
    except Exception as error:  # noqa: BLE001  vLLM does not guard its plug-ins
        print(f"kvtrace: engine plug-in not installed: {error!r}", file=sys.stderr, flush=True)  # noqa: T201
