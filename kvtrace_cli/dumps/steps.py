"""What the engine plug-in wrote: the steps and the layout of each process, checked field by field.

Source: docs/format.md, sections Steps and Layout.
"""

import sys
from pathlib import Path
from typing import Any, Final

from kvtrace_cli.dumps.checked import UINT64, Checked
from kvtrace_cli.dumps.json_lines import numbered_objects, parsed, text_of
from kvtrace_cli.dumps.run_dir import RunDir
from kvtrace_cli.dumps.schema import KvGroup, KvTensor, Layout, ProcessSteps

_SCHEMA_VERSION: Final = 1
_KINDS: Final = ("forward", "dummy", "draft")
_ROLES: Final = ("kv", "k", "v", "k_scale", "v_scale")
_AXES: Final = ("block", "offset", "kv", "head", "dim", "kv_dim")
# Far more than an engine batches, and few enough that a damaged number does not fill the memory.
_MOST_ROWS: Final = 1 << 20
_LARGEST_COUNT: Final = 2**31 - 1
# More than any context has; what was found in a prefix cache is looked at token by token.
_MOST_TOKENS: Final = 1 << 24
# Addresses and extents that 64-bit signed arithmetic takes.
_LARGEST_EXTENT: Final = 2**62

_RowRanges = tuple[tuple[str, int, int], ...]
# Of each step's requests one copy.
_Shared = dict[_RowRanges, _RowRanges]


def read_steps(run_dir: RunDir) -> tuple[ProcessSteps, ...]:
    """Read what the engine plug-in wrote, in the order of processes; none if it did not run.

    A torn last line is left out, as it never was whole.

    Raises:
        RunDirError: a line or field cannot be what docs/format.md says, or the step stamps do not
            rise by one from 1.
        DumpFormatError: a packed file is damaged.

    Units: `host_monotonic_ns` in ns of CLOCK_MONOTONIC; addresses in bytes; shapes in elements.
    """
    steps, layouts = run_dir.step_files(), run_dir.layout_files()
    shared: _Shared = {}
    return tuple(
        _read_process(process_id, steps.get(process_id), layouts.get(process_id), shared)
        for process_id in sorted({*steps, *layouts})
    )


def _read_process(
    process_id: int, steps: Path | None, layout: Path | None, shared: _Shared
) -> ProcessSteps:
    lines = (
        [Checked(steps, f"line {number}", line) for number, line in numbered_objects(steps)]
        if steps
        else []
    )
    started = _started(lines[0]) if lines else None
    groups = len(started.get("block_sizes") or ()) if started else 0
    reader = _LineReader(groups, shared)
    kept = tuple(line.record for line in lines[1:] if reader.check(line))
    return ProcessSteps(process_id, started, kept, _read_layout(layout) if layout else None)


def _started(line: Checked) -> dict[str, Any]:
    if line.text("event") != "started":
        raise line.fault(f"event {line.record['event']!r}", "`started` as the first line")
    _check_version(line)
    for name in ("engine", "engine_version", "model_runner"):
        line.optional_text(name)
    for name in ("missing", "inexact"):
        line.items(name, line.as_text)
    line.items("block_sizes", _block_size_of(line))
    for field in ("ranks", "world_sizes"):
        numbers = line.record.get(field)
        if numbers is not None and not isinstance(numbers, dict):
            raise line.fault(f"{field} {numbers!r}", "an object")
        for name, number in (numbers or {}).items():
            line.as_number(number, f"{field} {name}")
    for name in ("host", "host_clock"):
        line.optional_text(name)
    for name in ("stamped", "several_hosts"):
        line.optional_flag(name)
    return line.record


def _block_size_of(line: Checked) -> Any:
    return lambda value, name: line.as_number(value, name, _MOST_TOKENS, smallest=1)


def _check_version(found: Checked) -> None:
    version = found.number("schema_version")
    if version != _SCHEMA_VERSION:
        raise found.fault(
            f"schema version {version}", f"{_SCHEMA_VERSION}, which this kvtrace reads"
        )


class _LineReader:
    """Checks the lines of one process in their order."""

    def __init__(self, groups: int, shared: _Shared) -> None:
        self._groups = groups
        self._shared = shared
        self._last_stamp = 0
        self._holders: set[str] = set()

    def check(self, line: Checked) -> bool:
        """Check a line; say whether it is one that a reader knows."""
        event = line.text("event")
        if event == "started":
            raise line.fault("event 'started'", "it once only, as the first line")
        if event == "failed":
            line.optional_text("hook")
            line.optional_text("error")
        if event in ("step", "idle"):
            line.optional_number("host_monotonic_ns", UINT64)
            self._check_changes(line)
        if event == "step":
            self._check_step(line)
        return event in ("step", "idle", "failed")

    def _check_step(self, line: Checked) -> None:
        stamp = line.number("step_stamp")
        if stamp != self._last_stamp + 1:
            raise line.fault(f"step_stamp {stamp}", f"{self._last_stamp + 1}, one more each step")
        self._last_stamp = stamp
        line.text("kind", _KINDS)
        line.optional_text("graph_mode")
        rows, padded = (
            None if line.record.get(name) is None else line.number(name, _MOST_ROWS)
            for name in ("rows", "padded_rows")
        )
        requests = line.items("requests", self._row_range_of(line))
        if requests:
            # There is as much of it as of rows, and the ranks of an engine have the same.
            line.record["requests"] = self._shared.setdefault(requests, requests)
        owned = sum(count for _, count, _ in requests)
        if owned > _MOST_ROWS:
            raise line.fault(f"{owned} rows in its requests", f"at most {_MOST_ROWS}")
        if line.record["kind"] == "forward" and rows is not None and rows != owned:
            raise line.fault(f"rows {rows}", f"{owned}, as its requests have")
        if rows is not None and padded is not None and padded < rows:
            raise line.fault(f"padded_rows {padded}", f"at least its {rows} rows")

    def _row_range_of(self, line: Checked) -> Any:
        def check(value: Any, name: str) -> tuple[str, int, int]:
            request_id, rows, position = line.as_parts(value, name, 3)
            return (
                sys.intern(line.as_text(request_id, name)),
                line.as_number(rows, f"{name}[1]", _MOST_ROWS),
                line.as_number(position, f"{name}[2]", _MOST_TOKENS),
            )

        return check

    def _check_changes(self, line: Checked) -> None:
        for name in ("finished", "preempted"):
            self._holders.difference_update(line.items(name, line.as_text))
        for name in ("admitted", "resumed"):
            self._holders.update(line.items(name, self._admission_of(line)))
        line.items("grown", self._growth_of(line))
        line.items("copied_blocks", self._copy_of(line))

    def _admission_of(self, line: Checked) -> Any:
        def check(value: Any, name: str) -> str:
            request_id, computed, blocks = line.as_parts(value, name, 3)
            line.as_number(computed, f"{name}[1]", _MOST_TOKENS)
            self._check_blocks(line, blocks, f"{name}[2]")
            return line.as_text(request_id, name)

        return check

    def _growth_of(self, line: Checked) -> Any:
        def check(value: Any, name: str) -> None:
            request_id, blocks = line.as_parts(value, name, 2)
            self._check_blocks(line, blocks, f"{name}[1]")
            if line.as_text(request_id, name) not in self._holders:
                raise line.fault(f"{name} of {request_id!r}", "a request that has KV blocks")

        return check

    def _check_blocks(self, line: Checked, value: Any, name: str) -> None:
        if not self._groups:
            raise line.fault(name, "`block_sizes` in the first line beside it")
        for position, blocks in enumerate(line.as_parts(value, name, self._groups)):
            line.as_list(
                blocks,
                f"{name}[{position}]",
                lambda kv_block_id, at: line.as_number(kv_block_id, at, _LARGEST_COUNT),
            )

    def _copy_of(self, line: Checked) -> Any:
        def check(value: Any, name: str) -> None:
            for kv_block_id in line.as_parts(value, name, 2):
                line.as_number(kv_block_id, name, _LARGEST_COUNT)

        return check


def _read_layout(path: Path) -> Layout:
    value = parsed(path, text_of(path))
    if not isinstance(value, dict):
        raise Checked(path, "the file", {}).fault(f"a JSON {type(value).__name__}", "an object")
    whole = Checked(path, "the object", value)
    _check_version(whole)
    groups = whole.items("groups", lambda part, name: _group(_object(whole, part, name)))
    return Layout(
        num_blocks=whole.number("num_blocks", _LARGEST_COUNT),
        null_block=whole.optional_number("null_block", _LARGEST_COUNT),
        groups=groups,
        tensors=whole.items(
            "tensors", lambda part, name: _tensor(_object(whole, part, name), len(groups))
        ),
    )


def _object(whole: Checked, value: Any, name: str) -> Checked:
    if not isinstance(value, dict):
        raise whole.fault(f"{name} {value!r}", "an object")
    return Checked(whole.path, name, value)


def _group(group: Checked) -> KvGroup:
    return KvGroup(
        block_size=group.number("block_size", _MOST_TOKENS, smallest=1),
        kernel_block_size=group.number("kernel_block_size", _MOST_TOKENS, smallest=1),
        layer_names=group.items("layer_names", group.as_text),
        sliding_window=_window(group, "sliding_window"),
        attention_chunk_size=_window(group, "attention_chunk_size"),
        unknown_window=group.optional_flag("unknown_window"),
    )


def _window(group: Checked, name: str) -> int | None:
    if group.record.get(name) is None:
        return None
    return group.number(name, _LARGEST_COUNT, smallest=1)


def _tensor(tensor: Checked, groups: int) -> KvTensor:
    def extent(value: Any, name: str) -> int:
        return tensor.as_number(value, name, _LARGEST_EXTENT)

    shape, stride = tensor.items("shape", extent), tensor.items("stride", extent)
    if len(stride) != len(shape):
        raise tensor.fault(f"{len(stride)} strides", f"{len(shape)}, as the shape has")
    element_size = tensor.number("element_size", 64, smallest=1)
    address = tensor.number("address", UINT64)
    last = sum((size - 1) * step for size, step in zip(shape, stride, strict=True) if size)
    if (last + 1) * element_size > min(_LARGEST_EXTENT, UINT64 + 1 - address):
        raise tensor.fault(f"an extent of {last + 1} elements", "one that memory can hold")
    group = tensor.number("group")
    if group >= groups:
        raise tensor.fault(f"group {group}", f"one of the {groups} groups")
    return KvTensor(
        layer_name=tensor.text("layer_name"),
        layer_index=tensor.number("layer_index", 2**16 - 1),
        group=group,
        role=tensor.text("role", _ROLES),
        address=address,
        shape=shape,
        stride=stride,
        axes=_axes(tensor, len(shape)),
        dtype=tensor.text("dtype"),
        element_size=element_size,
    )


def _axes(tensor: Checked, dimensions: int) -> tuple[str, ...] | None:
    if tensor.record.get("axes") is None:
        return None
    axes = tensor.items("axes", tensor.as_text)
    if len(axes) != dimensions or len(set(axes)) != len(axes) or not set(axes) <= set(_AXES):
        raise tensor.fault(f"axes {list(axes)}", f"{dimensions} different of {', '.join(_AXES)}")
    return axes
