"""What was run, from the manifest: only what is known, each value as text."""

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from kvtrace_cli.reports.html.blocks import Cell, Details, Part, Section, Table
from kvtrace_cli.reports.html.side import Side

_NONE: Final = "-"


def run_section(sides: Sequence[Side]) -> Section:
    """Return what was run, of two runs side by side; and each one's command and error, folded."""
    facts = [_facts(side) for side in sides]
    rows = tuple(
        (Cell(name), *(Cell(known[name] or _NONE) for known in facts))
        for name in facts[0]
        if any(known[name] for known in facts)
    )
    head = ("", "before", "after") if len(sides) > 1 else ()
    table = Table("", head, (False,) * (1 + len(sides)), rows)
    folded = (details for side in sides for details in _details(side, named=len(sides) > 1))
    return Section("run", "What was run", (Part("", (table, *folded)),))


def _facts(side: Side) -> dict[str, str]:
    """Return values by name; what is not known is empty."""
    manifest = side.manifest
    config = _object(manifest, "config")
    return {
        "run": side.name,
        "model": _text(config.get("model")),
        "engine": _engine(manifest),
        "GPU": _gpus(manifest.get("gpus")),
        "versions": _versions(_object(manifest, "versions")),
        "requests": _requests(side.requests),
        "recorded": _recording(_object(config, "recording")),
        "CUDA graphs": _text(_object(config, "engine").get("cudagraph_mode")),
        "created": _text(manifest.get("created")),
        "kvtrace": _text(manifest.get("kvtrace_version")),
        "injector": _text(manifest.get("injector_build")),
        "outcome": _text(_object(manifest, "outcome").get("status")),
    }


def _details(side: Side, *, named: bool) -> Iterator[Details]:
    of_run = f" of {side.name}" if named else ""
    command = side.manifest.get("command")
    if isinstance(command, list):
        yield Details(f"Command{of_run}", shlex.join(map(str, command)))
    error = _text(_object(side.manifest, "outcome").get("error"))
    if error:
        yield Details(f"Error of the traced run{of_run}", error)


def _object(holder: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = holder.get(name)
    return value if isinstance(value, dict) else {}


def _text(value: Any) -> str:
    return "" if value is None else str(value)


def _engine(manifest: Mapping[str, Any]) -> str:
    engine = _text(manifest.get("engine"))
    version = _text(_object(manifest, "versions").get(engine))
    if not engine:
        return f"started by `kvtrace {_text(manifest.get('subcommand'))}`"
    return f"{engine} {version}".strip()


def _gpus(gpus: Any) -> str:
    """Write each sort of GPU once, with how many there are."""
    known = [gpu for gpu in gpus if isinstance(gpu, dict)] if isinstance(gpus, list) else []
    sorts = Counter(_gpu(gpu) for gpu in known)
    return "; ".join(f"{number} x {one}" if number > 1 else one for one, number in sorts.items())


def _gpu(gpu: Mapping[str, Any]) -> str:
    driver, capability = gpu.get("driver_version"), gpu.get("compute_capability")
    parts = (
        _text(gpu.get("name")),
        f"driver {driver}" if driver else "",
        f"compute capability {capability}" if capability else "",
    )
    return ", ".join(part for part in parts if part)


def _versions(versions: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{name.replace('_', ' ')} {version}"
        for name, version in versions.items()
        if version is not None
    )


def _requests(requests: Sequence[Mapping[str, Any]]) -> str:
    measured = [request for request in requests if request.get("role") == "measured"]
    if not measured:
        return "none recorded"
    prompt, returned = (
        sum(_length(request.get(name)) for request in measured)
        for name in ("prompt_token_ids", "returned_token_ids")
    )
    warmups = len(requests) - len(measured)
    return (
        f"{len(measured):,} measured ({prompt:,} prompt tokens, {returned:,} returned), "
        f"{warmups:,} to warm up"
    )


def _length(tokens: Any) -> int:
    return len(tokens) if isinstance(tokens, list) else 0


def _recording(recording: Mapping[str, Any]) -> str:
    if recording.get("enabled") is False:
        return "nothing"
    # Runs of before --record existed have block entries only.
    what = {"writes": "block entries and each block's stores", "all-writes": "all threads' stores"}
    mode = _text(recording.get("record"))
    steps = {"True": ", engine steps", "False": ", no engine steps"}
    return what.get(mode, "block entries") + steps.get(_text(recording.get("steps")), "")
