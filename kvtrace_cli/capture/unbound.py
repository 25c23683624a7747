"""Which functions the injector left without callback data: the first suspects after a fault."""

from kvtrace_cli.dumps.run_dir import RunDir, read_journal
from kvtrace_cli.dumps.schema import unbound_functions
from kvtrace_cli.errors import RunDirError


def journalled_unbound_functions(run_dir: RunDir) -> tuple[str, ...]:
    """Return the names that the journals give.

    A journal that cannot be read names none: this is for a message about something worse.
    """
    try:
        return unbound_functions(read_journal(run_dir))
    except RunDirError:
        return ()
