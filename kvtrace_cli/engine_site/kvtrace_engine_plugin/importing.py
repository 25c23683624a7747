"""Act on a module when the engine imports it, without importing it ourselves."""

from __future__ import annotations

import sys
from importlib.abc import MetaPathFinder
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType


class PostImportFinder(MetaPathFinder):
    """A finder that finds nothing itself: it calls an action after a module was executed."""

    def __init__(self, actions: Mapping[str, Callable[[ModuleType], None]]) -> None:
        """Take the action of each module name; an action must not raise."""
        self._actions = dict(actions)

    def install(self) -> None:
        """Act on the modules that are imported already, and wait for the others."""
        sys.meta_path.insert(0, self)
        for name, action in self._actions.items():
            module = sys.modules.get(name)
            if module is not None:
                action(module)

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        """Return the spec that the other finders find, with the action behind its loader."""
        action = self._actions.get(fullname)
        if action is None:
            return None
        for finder in sys.meta_path:
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec = find(fullname, path, target) if find is not None else None
            if spec is not None:
                _act_after_execution(spec, action)
                return spec  # type: ignore[no-any-return]
        return None


def _act_after_execution(spec: ModuleSpec, action: Callable[[ModuleType], None]) -> None:
    """Put the action behind this spec's loader, and take it out again once it ran.

    On the loader object and not around it, so that the module keeps the loader it would have.
    """
    loader: Any = spec.loader
    execute = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        del loader.exec_module
        execute(module)
        action(module)

    loader.exec_module = exec_module
