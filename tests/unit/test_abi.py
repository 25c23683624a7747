"""The header as cffi reads it is the header as the compilers read it."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from kvtrace_cli.dumps import abi

INCLUDE = Path(__file__).parents[2] / "injector" / "include"
STRUCTS = tuple(
    name for name in abi.ffi().list_types()[0] if abi.ffi().typeof(name).kind == "struct"
)
COMPILERS = {"gcc": ("-std=c11", ".c"), "g++": ("-std=c++17", ".cpp")}


def members(struct):
    return [(name, member.offset) for name, member in abi.ffi().typeof(struct).fields]


def layout_by_cffi():
    return {
        (struct, name): (offset, abi.size_of(struct))
        for struct in STRUCTS
        for name, offset in members(struct)
    }


def layout_program():
    """Return a C program that prints the offset of each member that cffi knows, as JSON lines."""
    lines = ["#include <stddef.h>", "#include <stdio.h>", '#include "kvtrace_activity.h"']
    lines += ["int main(void) {"]
    for struct in STRUCTS:
        for name, _ in members(struct):
            text = json.dumps(f'["{struct}", "{name}", %zu, %zu]\n')
            lines.append(f"printf({text}, offsetof({struct}, {name}), sizeof({struct}));")
    return "\n".join([*lines, "return 0;", "}", ""])


@pytest.mark.parametrize("compiler", COMPILERS)
def test_compilers_and_cffi_agree_on_every_size_and_offset(compiler, tmp_path):
    if shutil.which(compiler) is None:
        pytest.skip(f"{compiler} is not installed")
    standard, suffix = COMPILERS[compiler]
    source = tmp_path / f"print_layout{suffix}"
    source.write_text(layout_program())
    program = tmp_path / "print_layout"
    command = [compiler, standard, "-Wall", "-Wextra", "-Werror", f"-I{INCLUDE}", str(source)]
    subprocess.run([*command, "-o", str(program)], check=True)
    printed = subprocess.run([program], check=True, capture_output=True, text=True).stdout
    rows = [json.loads(line) for line in printed.splitlines()]
    assert {(row[0], row[1]): (row[2], row[3]) for row in rows} == layout_by_cffi()


@pytest.mark.parametrize(
    ("struct", "size"),
    [
        (abi.HEADER_STRUCT, 64),
        (abi.EVENTS_STRUCT, 64),
        (abi.LAUNCHES_STRUCT, 96),
        (abi.ACTIVITIES_STRUCT, 80),
    ],
)
def test_records_have_the_documented_size(struct, size):
    assert abi.size_of(struct) == size


@pytest.mark.parametrize("struct", [abi.EVENTS_STRUCT, abi.LAUNCHES_STRUCT, abi.ACTIVITIES_STRUCT])
def test_every_field_lies_within_one_word(struct):
    """The reader cuts records into 64-bit words, so no field may cross two."""
    assert all(field.offset % 8 + field.size <= 8 for field in abi.fields(struct))


def test_magic_numbers_are_the_texts_of_the_header():
    magic = abi.constant("KVTRACE_EVENTS_MAGIC").to_bytes(8, "little")
    assert magic == b"KVTEVENT"
    assert abi.constant("KVTRACE_LAUNCHES_MAGIC").to_bytes(8, "little") == b"KVTLAUNC"


def test_enumerators_are_named():
    assert abi.enumerators("kvtrace_launch_kind") == {
        1: "KVTRACE_LAUNCH_PLAIN",
        2: "KVTRACE_LAUNCH_GRAPH_NODE",
    }
