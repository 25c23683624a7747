"""Exceptions a user can cause, each with its exit code. Imports nothing of ours."""

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes of every command; README documents them."""

    AGREES = 0
    MISMATCH = 1
    USAGE = 2
    RUN_FAILED = 3
    INCONCLUSIVE = 4
    BUG = 70
    INTERRUPTED = 130


class KvtraceError(Exception):
    """What went wrong, where, found, expected, and what to do next; shown without a traceback."""

    exit_code = ExitCode.USAGE


class ConfigError(KvtraceError):
    """An option or the environment cannot work."""


class RunDirError(KvtraceError):
    """A run directory is missing, unfinished or has missing parts."""


class DumpFormatError(KvtraceError):
    """A recorded file cannot be what it claims to be."""


class RunFailedError(KvtraceError):
    """The traced run itself failed."""

    exit_code = ExitCode.RUN_FAILED


class InconclusiveError(KvtraceError):
    """There is nothing to judge, so nothing is claimed."""

    exit_code = ExitCode.INCONCLUSIVE
