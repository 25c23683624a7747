"""What was asked of a run and on what it ran, from its manifest, requests, steps and layouts."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from kvtrace_cli.analysis.outlines import MOST_KEPT, digest_of, runs_of
from kvtrace_cli.analysis.ranks import ranks_of
from kvtrace_cli.analysis.run_facts import KvView, RequestKind, Settings
from kvtrace_cli.dumps.rank_names import DATA, PIPELINE, TENSOR
from kvtrace_cli.dumps.schema import KvTensor, Layout, Recording

# Settings that are listed if they differ and decide nothing, by the place where the manifest has
# them. People compare runs to learn what these change.
_LISTED: Final = {
    "weights": ("config", "weights"),
    "dtype": ("config", "engine", "dtype"),
    "max_num_seqs": ("config", "engine", "max_num_seqs"),
    "max_num_batched_tokens": ("config", "engine", "max_num_batched_tokens"),
    "kv_cache_memory_bytes": ("config", "engine", "kv_cache_memory_bytes"),
    "prefix_caching": ("config", "engine", "prefix_caching"),
    "attention_backend": ("config", "engine", "attention_backend"),
    "flash_attention": ("config", "engine", "flash_attention"),
    "graph_mode": ("config", "engine", "cudagraph_mode"),
    "capture_sizes": ("config", "engine", "capture_sizes"),
    "engine_arguments": ("config", "engine", "arguments"),
    "one_shot": ("config", "recording", "one_shot"),
    "stamps": ("config", "recording", "stamps"),
    "bind": ("config", "recording", "bind"),
    "kvtrace_version": ("kvtrace_version",),
    "subcommand": ("subcommand",),
    # Of `kvtrace exec`, which knows no requests: all that says what was asked.
    "command": ("config", "command"),
}
# What the engine chose, or was told to; its log says it.
ATTENTION: Final = "attention"


def run_settings(recording: Recording) -> Settings:
    """Return the settings of a run; what its files do not say is None.

    Args:
        recording: of one run. A manifest may lack anything: others than ours write some too.
    """
    manifest = recording.manifest
    kinds = list(_request_kinds(recording))
    kernels = _at(manifest, ("config", "recording", "kernels"))
    sizes = _parallel_sizes(recording)
    return Settings(
        engine=_text(manifest.get("engine")),
        model=_text(manifest.get("model") or _at(manifest, ("config", "model"))),
        tensor_parallel=sizes.get(TENSOR),
        pipeline_parallel=sizes.get(PIPELINE),
        data_parallel=sizes.get(DATA),
        kv_views=_kv_views(recording),
        request_kinds=tuple(kinds[:MOST_KEPT]),
        requests_digest=digest_of(kinds),
        concurrency=_number(_at(manifest, ("config", "requests", "concurrency"))),
        record=_record(recording),
        steps=any(process.lines for process in recording.steps),
        kernels_asked=tuple(map(str, kernels)) if isinstance(kernels, list) else (),
        listed=dict(_listed(recording)),
    )


def _attention(manifest: Mapping[str, Any]) -> str | None:
    """Say which attention the engine said it uses; None if it is not known.

    Args:
        manifest: of the run; what it asked for may leave the choice to the engine.
    """
    backends = _all_of(_at(manifest, ("attention", "backends")))
    versions = _all_of(_at(manifest, ("attention", "flash_attention_versions")))
    parts = (backends, f"FlashAttention {versions}" if versions else "")
    return ", ".join(part for part in parts if part) or None


def _all_of(values: Any) -> str:
    return " and ".join(map(str, values)) if isinstance(values, list) else ""


def _listed(recording: Recording) -> Iterator[tuple[str, Any]]:
    manifest = recording.manifest
    for name, place in _LISTED.items():
        yield name, _at(manifest, place)
    yield ATTENTION, _attention(manifest)
    gpus = [gpu for gpu in manifest.get("gpus") or () if isinstance(gpu, dict)]
    yield "gpus", [gpu.get("name") for gpu in gpus]
    yield "driver_version", next((gpu.get("driver_version") for gpu in gpus), None)
    versions = manifest.get("versions")
    for name in ("vllm", "torch", "cuda_driver"):
        yield f"{name}_version", versions.get(name) if isinstance(versions, dict) else None
    for name in ("engine_version", "model_runner"):
        yield name, _started(recording).get(name)
    yield "kv_block_sizes", list(_started(recording).get("block_sizes") or ())


def _record(recording: Recording) -> str:
    """Return what was recorded; the files tell of a run whose manifest does not."""
    asked = _text(_at(recording.manifest, ("config", "recording", "record")))
    has_stores = any(dump.header.has("KVTRACE_FILE_WRITES") for dump in recording.events)
    return asked or ("writes" if has_stores else "blocks")


def _started(recording: Recording) -> dict[str, Any]:
    """Return the first line of the first process that ran steps, else of any."""
    lines = [(bool(process.lines), process.started or {}) for process in recording.steps]
    return max(lines, key=lambda line: line[0], default=(False, {}))[1]


def _parallel_sizes(recording: Recording) -> Mapping[str, int]:
    """Return how many ranks there are in each dimension; nothing if no process says its own."""
    ranks = ranks_of(recording)
    return ranks.sizes if ranks.present or ranks.absent else {}


def _request_kinds(recording: Recording) -> Iterator[RequestKind]:
    """Yield the requests in the order in which they were sent, those alike in a row as one."""
    asked = sorted(recording.requests, key=lambda request: request["request_index"])
    for kind, count in runs_of(map(_asked, asked)):
        role, prompt_tokens, max_tokens, streamed = kind
        yield RequestKind(role, prompt_tokens, max_tokens, streamed, count)


def _asked(request: dict[str, Any]) -> tuple[str | None, int | None, int | None, bool]:
    prompt = request.get("prompt_token_ids")
    return (
        _text(request.get("role")),
        len(prompt) if isinstance(prompt, list) else None,
        _number(request.get("max_tokens")),
        request.get("token_host_monotonic_ns") is not None,
    )


def _kv_views(recording: Recording) -> tuple[KvView, ...] | None:
    """Return the KV tensors of the first process with a layout, those alike as one.

    Of several pipeline ranks it is the first of each, as they share the layers.
    """
    layouts = {process.process_id: process.layout for process in recording.steps if process.layout}
    first: dict[int, Layout] = {}
    for rank in ranks_of(recording).present:
        layout = layouts.get(rank.process_id or 0)
        if layout and (rank.data, rank.tensor) == (0, 0):
            first.setdefault(rank.pipeline, layout)
    chosen = list(first.values()) or list(layouts.values())[:1]
    return tuple(_views_of(chosen)) if chosen else None


def _views_of(layouts: Sequence[Layout]) -> Iterator[KvView]:
    tensors = (tensor for layout in layouts for tensor in layout.tensors)
    views = [
        (tensor.group, tensor.role, tuple(_axes(tensor)), tensor.dtype)
        for tensor in sorted(tensors, key=lambda tensor: tensor.layer_index)
    ]
    for view in dict.fromkeys(views):
        group, role, axes, dtype = view
        yield KvView(group, role, views.count(view), axes, dtype)


def _axes(tensor: KvTensor) -> Iterator[str]:
    """Yield the dimensions, the widest stride first, with their sizes but for KV blocks."""
    names: Sequence[str] = tensor.axes or ["?"] * len(tensor.shape)
    parts = zip(tensor.stride, names, tensor.shape, strict=True)
    for _, name, size in sorted(parts, key=lambda part: part[0], reverse=True):
        yield name if name == "block" else f"{name} {size}"


def _at(document: Any, place: Sequence[str]) -> Any:
    for name in place:
        document = document.get(name) if isinstance(document, dict) else None
    return document


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
