"""Which host this process is on, and whose clock it reads."""

from __future__ import annotations

import os

_BOOT_ID = "/proc/sys/kernel/random/boot_id"
_TIME_NAMESPACE = "/proc/self/ns/time"


def host_name() -> str:
    """Return the host's name: for people, as two hosts may have the same."""
    return os.uname().nodename


def host_clock() -> str:
    """Return what tells one CLOCK_MONOTONIC from another: the same text, the same clock.

    It begins anew with each boot, and with each time namespace. Empty if the kernel does not say.
    """
    try:
        with open(_BOOT_ID, encoding="ascii") as file:  # noqa: PTH123  the module stays small
            boot_id = file.read().strip()
    except OSError:
        return ""
    try:
        namespace = os.readlink(_TIME_NAMESPACE)  # noqa: PTH115
    except OSError:
        namespace = ""  # a kernel without time namespaces
    return f"{boot_id} {namespace}".strip()
