"""Pairs of runs that differ in one thing each: summaries as commands read them, without a GPU."""

import json
from pathlib import Path
from typing import Any

from builders import HOST_STEP_NS, Trace, recorded, request

from kvtrace_cli.analysis.attribution import attribute
from kvtrace_cli.analysis.diff import DiffOptions, diff
from kvtrace_cli.analysis.diff_model import Diff
from kvtrace_cli.analysis.facts import run_facts
from kvtrace_cli.analysis.reconcile import reconcile
from kvtrace_cli.analysis.run_facts import Summary
from kvtrace_cli.analysis.steps import step_tables
from kvtrace_cli.dumps.schema import Recording
from kvtrace_cli.dumps.summary import summary_of
from kvtrace_cli.reports.documents import summary_document

LAYERS = 4
REPLAYS = 7
MANIFEST = {
    "engine": "vllm",
    "config": {
        "model": "Qwen3-14B",
        "engine": {"capture_sizes": [1, 2, 4, 8], "attention_backend": "FLASH_ATTN"},
        "recording": {"record": "blocks", "kernels": ["reshape_and_cache_flash_kernel"]},
        "requests": {"concurrency": 1},
    },
    "gpus": [{"name": "NVIDIA H200", "driver_version": "580.1"}],
    "versions": {"vllm": "0.26.0", "torch": "2.11.0"},
}


def plain_pass(trace: Trace, rows: int, **changes: int) -> None:
    """Launch each layer's kernel by itself, all blocks entering."""
    for _ in range(LAYERS):
        trace.enter_all(trace.plain((rows, 1, 1), **changes))


def replay(trace: Trace, launch_id: int, rows: int = 1, **changes: int) -> None:
    """Replay a graph of one node a layer."""
    for node in range(LAYERS):
        trace.enter_all(trace.node(node, launch_id, (rows, 1, 1), **changes))


def prompt_and_replays(replays: int = REPLAYS, rows: int = 1, start_up: int = 0) -> Trace:
    """Return a run: start-up passes, the prompt's pass of 8 rows, then replays of a graph."""
    trace = Trace()
    for _ in range(start_up):
        plain_pass(trace, 16)
    plain_pass(trace, 8)
    for launch_id in range(1, replays + 1):
        replay(trace, launch_id, rows)
    return trace


def after_start_up(passes: int, **changes: Any) -> dict[str, Any]:
    """Return a measured request that begins after so many start-up passes."""
    return request(host_monotonic_begin_ns=HOST_STEP_NS * (passes * LAYERS + 1), **changes)


def document_of(recording: Recording) -> dict[str, Any]:
    """Return a recording's summary as JSON has it."""
    result = reconcile(recording)
    tables = step_tables(recording)
    attribution = attribute(result, recording, tables)
    facts = run_facts(result, attribution, recording, tables)
    document = summary_document(result, attribution, recording.manifest, facts)
    plain: dict[str, Any] = json.loads(json.dumps(document))
    return plain


def document(path: Path, *traces: Trace, **options: Any) -> dict[str, Any]:
    """Write a run, read it back and summarise it, as the commands do."""
    return document_of(recorded(path, *traces, **({"manifest": MANIFEST} | options)))


def side(path: Path, *traces: Trace, **options: Any) -> Summary:
    """Return the same as one side of a comparison."""
    return summary_of(path, document(path, *traces, **options), Summary)


def compared(before: Summary, after: Summary, **options: Any) -> Diff:
    """Compare two sides."""
    return diff(before, after, DiffOptions(**options), ("a", "b"))


def decisive(found: Diff) -> list[tuple[str, str, str, str]]:
    """Return (rule, where, before, after) of the differences that decide."""
    return [
        (one.rule, one.where, one.before, one.after) for one in found.differences if one.decides
    ]


def with_manifest(**changes: Any) -> dict[str, Any]:
    """Return the manifest with some of its `config` changed, by group."""
    config = MANIFEST["config"]
    assert isinstance(config, dict)
    groups = {name: config[name] | values for name, values in changes.items()}
    return MANIFEST | {"config": config | groups}
