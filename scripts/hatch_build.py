"""Tag a wheel for this platform if it carries the injector; without it the wheel is pure."""

import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class InjectorWheelHook(BuildHookInterface):
    """The injector needs no Python ABI, only the platform."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002
        """Set the tag before the wheel is written."""
        if any(Path(self.root, "kvtrace_cli", "native").glob("*.so")):
            platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{platform}"
