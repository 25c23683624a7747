"""Where an export goes: never over something else, and whole or not at all."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from kvtrace_cli.errors import ConfigError

# Present in every directory of tables: by it an earlier export is known.
COLUMNS_FILE = "_columns.json"


@contextmanager
def fresh_target(path: Path, *, force: bool) -> Iterator[Path]:
    """Yield a path beside `path` to write to, and put what is there in its place at the end.

    If writing fails nothing is left behind, and what was at `path` stays.

    Args:
        path: a file or a directory that is not there.
        force: an earlier export may be there, and is replaced.

    Raises:
        ConfigError: something is there that may not be replaced, or it cannot be written.
    """
    check_target(path, force=force)
    # `.` has no name of its own.
    target = path.resolve()
    partial = target.with_name(f".{target.name}.partial")
    try:
        partial.parent.mkdir(parents=True, exist_ok=True)
        _remove(partial)
        yield partial
        _remove(target)
        partial.rename(target)
    except OSError as error:
        raise ConfigError(
            f"{error.filename or path}: cannot be written ({error.strerror or error}); choose "
            "another -o"
        ) from error
    finally:
        # What stays for want of a permission must not hide why the export failed.
        with suppress(OSError):
            _remove(partial)


def check_target(path: Path, *, force: bool) -> None:
    """Refuse a path where something is that may not be replaced.

    Raises:
        ConfigError: it may not.
    """
    if not path.exists():
        return
    if not force:
        raise ConfigError(f"{path}: already there; choose another -o, or replace it with --force")
    if path.is_dir() and not (path / COLUMNS_FILE).is_file():
        raise ConfigError(
            f"{path}: a directory without {COLUMNS_FILE}, so no export, and --force does not "
            "touch it; choose another -o"
        )


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
