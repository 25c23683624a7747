"""The byte layouts, read by cffi from the injector's own header; nothing here restates them."""

from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

import cffi

from kvtrace_cli.errors import ConfigError

_HEADER_NAME = "kvtrace_abi_decl.h"
_ACTIVITY_HEADER_NAME = "kvtrace_activity_decl.h"

EVENTS_STRUCT = "kvtrace_block_event"
LAUNCHES_STRUCT = "kvtrace_launch_record"
HEADER_STRUCT = "kvtrace_file_header"
CONFIG_STRUCT = "kvtrace_config"
ACTIVITIES_STRUCT = "kvtrace_activity_record"
ACTIVITY_CONFIG_STRUCT = "kvtrace_activity_config"


@dataclass(frozen=True)
class Field:
    """One scalar field of a record: its name, byte offset and unsigned width in bytes."""

    name: str
    offset: int
    size: int


def header_text(name: str = _HEADER_NAME, source_folder: str = "include") -> str:
    """Return the text of a header that cffi reads, from the installed package or the source tree.

    Args:
        name: the header; the ABI's if none is given.
        source_folder: the folder below injector/ that has it in the source tree.

    Raises:
        ConfigError: neither has it; the installation is broken.
    """
    packaged = resources.files("kvtrace_cli") / "native" / name
    if packaged.is_file():
        return packaged.read_text(encoding="utf-8")
    source = Path(__file__).parents[2] / "injector" / source_folder / name
    if source.is_file():
        return source.read_text(encoding="utf-8")
    raise ConfigError(
        f"{name}: not found in the installed package or in {source.parent}; install kvtrace again"
    )


@lru_cache(maxsize=1)
def ffi() -> cffi.FFI:
    """Return the parser that knows every structure of both headers."""
    parser = cffi.FFI()
    parser.cdef(header_text())
    parser.cdef(header_text(_ACTIVITY_HEADER_NAME))
    return parser


@lru_cache(maxsize=1)
def _constants() -> Any:
    return ffi().dlopen(None)


def constant(name: str) -> int:
    """Return a `#define` or enumerator of a header by its name, such as KVTRACE_ABI_VERSION."""
    return int(getattr(_constants(), name))


def size_of(struct: str) -> int:
    """Return the size of a structure in bytes."""
    return int(ffi().sizeof(struct))


@lru_cache
def fields(struct: str) -> tuple[Field, ...]:
    """Return the scalar fields of a record structure, in order; arrays are left out."""
    members = ffi().typeof(struct).fields
    return tuple(
        Field(name, member.offset, ffi().sizeof(member.type))
        for name, member in members
        if member.type.kind == "primitive"
    )


@lru_cache
def enumerators(enum: str) -> dict[int, str]:
    """Return value -> name of an enum of the header, such as `kvtrace_failure_site`."""
    return dict(ffi().typeof(f"enum {enum}").elements)
