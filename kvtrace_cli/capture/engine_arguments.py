"""Find options among the arguments of an engine, as vLLM's own parser would."""

from collections.abc import Sequence


def option_value(arguments: Sequence[str], *names: str) -> str | None:
    """Return the value that an option has in the end; null if it is not there.

    Args:
        arguments: of the engine; the last one wins.
        names: the option's spellings, dashes in them.
    """
    found: str | None = None
    waiting = iter(arguments)
    for argument in waiting:
        name, equals, text = argument.partition("=")
        if _spelt(name) in names:
            found = text if equals else next(waiting, "")
    return found


def has_option(arguments: Sequence[str], *names: str) -> bool:
    """Say whether an option is there, with a value or without."""
    return any(_spelt(argument.partition("=")[0]) in names for argument in arguments)


def _spelt(name: str) -> str:
    """Return a name with dashes: vLLM takes underscores for them."""
    return name.replace("_", "-") if name.startswith("--") else name
