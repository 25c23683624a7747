"""Which functions the injector left without callback data: the first suspects after a fault."""

from kvtrace_cli.dumps.run_dir import RunDir, read_journal
from kvtrace_cli.errors import RunDirError


def unbound_functions(run_dir: RunDir) -> tuple[str, ...]:
    """Return the names, each once, in the order in which the functions were loaded.

    A journal that cannot be read names none: this is for a message about something worse.
    """
    try:
        lines = read_journal(run_dir)
    except RunDirError:
        return ()
    unbound = (line for line in lines if line.get("bound") is False)
    return tuple(dict.fromkeys(str(line.get("name")) for line in unbound))
