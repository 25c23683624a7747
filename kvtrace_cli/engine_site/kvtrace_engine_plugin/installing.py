"""Hook the engine's modules when it imports them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import executor_hooks, v1_hooks, v2_hooks
from .importing import PostImportFinder
from .injector_calls import injector_path
from .session import Session

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

_RUNNERS = {"v1": v1_hooks, "v2": v2_hooks}

_installed: list[PostImportFinder] = []


def install(directory: str) -> None:
    """Hook both runners and Ray's executors, now or when they are imported; once a process."""
    if _installed:
        return
    actions = {
        hooks.MODULE: _action(hooks.install, Session(directory, injector_path(), name))
        for name, hooks in _RUNNERS.items()
    }
    _installed.append(PostImportFinder(actions | executor_hooks.actions()))
    _installed[0].install()


def _action(
    install_hooks: Callable[[Session, ModuleType], None], session: Session
) -> Callable[[ModuleType], None]:
    def act(module: ModuleType) -> None:
        try:
            install_hooks(session, module)
        except Exception as error:  # noqa: BLE001  the engine's import must go on
            session.fail(f"the import of {module.__name__}", error)

    return act
