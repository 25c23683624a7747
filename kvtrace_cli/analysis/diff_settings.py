"""Whether two runs can be compared, and which of their settings differ."""

import shlex
from collections.abc import Iterator, Sequence
from math import prod
from typing import Any, Final

from kvtrace_cli.analysis.diff_model import Aspect, Difference
from kvtrace_cli.analysis.diff_words import counted, listed
from kvtrace_cli.analysis.model import Verdict
from kvtrace_cli.analysis.run_facts import KvView, RequestKind, Settings, Summary
from kvtrace_cli.analysis.run_settings import ATTENTION
from kvtrace_cli.dumps.rank_names import DATA, PIPELINE, TENSOR

# What `--allow` can name: each makes a comparison meaningless unless it is wanted.
ALLOWABLE: Final = (
    "schema",
    "engine",
    "emulated",
    "model-shape",
    "tensor-parallel",
    "pipeline-parallel",
    "data-parallel",
    "requests",
    "recording",
)
# The rule that no `--allow` lifts.
RUN_VERDICT: Final = "run-verdict"

_OLD_SCHEMA: Final = 1
# Axes of a KV tensor that say where a token is, not how large it is.
_PLACES: Final = ("block", "offset")
# Settings that are words of a command line.
_COMMAND_LINES: Final = ("engine_arguments", "command")


def comparability(before: Summary, after: Summary, allowed: Sequence[str]) -> list[Difference]:
    """Return what differs in the set-up of two runs, what decides first.

    Args:
        before: the first side.
        after: the second side.
        allowed: names of `ALLOWABLE` that may differ.

    Returns:
        Differences; `decides` where one makes the comparison meaningless and is not allowed, or
        a side is none to compare with.
    """
    found = [
        Difference(Aspect.COMPARABILITY, rule, where, *sides, decides=rule not in allowed)
        for rule, where, sides in _what_matters(before, after)
    ]
    return [*_verdicts(before, after), *found, *_listed(before.settings, after.settings)]


def comparable_rules(before: Summary, after: Summary) -> tuple[str, ...]:
    """Return the rules by which the two sides are alike, of those that both sides can tell."""
    differing = {rule for rule, _, _ in _what_matters(before, after)}
    unknown = set()
    if not (before.settings and after.settings):
        unknown = set(ALLOWABLE) - {"engine", "emulated"}
    elif not before.settings.request_kinds:
        unknown = {"requests"}
    return tuple(rule for rule in ALLOWABLE if rule not in differing | unknown)


def _verdicts(before: Summary, after: Summary) -> Iterator[Difference]:
    """Yield a difference if a side cannot be compared; a new mismatch is one of structure."""
    agrees = Verdict.AGREES.value
    sides = _verdict_in_words(before), _verdict_in_words(after)
    broken = [side for side in (before, after) if side.incomplete or side.verdict != agrees]
    if not broken:
        return
    is_new = before not in broken and after.verdict == Verdict.MISMATCH.value
    aspect = Aspect.STRUCTURE if is_new and not after.incomplete else Aspect.COMPARABILITY
    yield Difference(aspect, RUN_VERDICT, "what reconciling concluded", *sides, decides=True)


def _verdict_in_words(side: Summary) -> str:
    reason = f" ({side.reasons[0].rstrip('.')})" if side.reasons else ""
    return f"{side.verdict}{', incomplete' if side.incomplete else ''}{reason}"


def _what_matters(before: Summary, after: Summary) -> Iterator[tuple[str, str, tuple[str, str]]]:
    """Yield (rule, where, both sides) of all that makes a comparison meaningless."""
    if min(before.schema_version, after.schema_version) <= _OLD_SCHEMA:
        versions = f"version {before.schema_version}", f"version {after.schema_version}"
        yield (
            "schema",
            "summary, of which version 1 has no settings and hardly any structure",
            (versions),
        )
    if before.engine != after.engine:
        yield "engine", "engine", (_shown(before.engine), _shown(after.engine))
    if before.emulated != after.emulated:
        yield "emulated", "GPU", (_reality(before), _reality(after))
    if before.settings and after.settings:
        yield from _settings_that_matter(before.settings, after.settings)


def _settings_that_matter(
    before: Settings, after: Settings
) -> Iterator[tuple[str, str, tuple[str, str]]]:
    shapes = _model_shape(before), _model_shape(after)
    if shapes[0] != shapes[1] and None not in shapes:
        yield "model-shape", "shape of the model", (_shape(shapes[0]), _shape(shapes[1]))
    elif None in shapes and before.model != after.model:
        names = _shown(before.model), _shown(after.model)
        yield "model-shape", "model, whose shape is not recorded on both sides", names
    for dimension in (TENSOR, PIPELINE, DATA):
        ranks = [getattr(side, f"{dimension}_parallel") for side in (before, after)]
        if ranks[0] != ranks[1] and None not in ranks:
            where = f"{dimension}-parallel ranks"
            yield f"{dimension}-parallel", where, (str(ranks[0]), str(ranks[1]))
    requests = _requests_parting(before, after)
    if requests:
        yield "requests", *requests
    recorded = _recorded(before), _recorded(after)
    # More than the first side has is no hindrance, as far as steps go.
    if before.record != after.record or (before.steps and not after.steps):
        yield "recording", "what was recorded", recorded
    elif before.kernels_asked != after.kernels_asked:
        kernels = listed(before.kernels_asked), listed(after.kernels_asked)
        yield "recording", "kernels that were looked for", kernels


def _requests_parting(before: Settings, after: Settings) -> tuple[str, tuple[str, str]] | None:
    """Return where the requests part: (where, both sides)."""
    if before.requests_digest != after.requests_digest:
        pairs = zip(_each(before), _each(after), strict=False)
        first = next((pair for pair in pairs if pair[0] != pair[1]), None)
        if first is None:
            totals = [sum(kind.requests for kind in side.request_kinds) for side in (before, after)]
            one, other = (counted(total, "request") for total in totals)
            return "requests that were sent", (one, other)
        return "requests that were sent", (_kind(first[0]), _kind(first[1]))
    if before.concurrency != after.concurrency and None not in (
        before.concurrency,
        after.concurrency,
    ):
        one, other = (counted(side.concurrency or 0, "request") for side in (before, after))
        return "measured requests sent at once", (one, other)
    return None


def _each(settings: Settings) -> Sequence[RequestKind]:
    return settings.request_kinds


def _kind(kind: RequestKind) -> str:
    streamed = ", streamed" if kind.streamed else ""
    return (
        f"{kind.requests:,} {_shown(kind.role)} of {_shown(kind.prompt_tokens)} + "
        f"{_shown(kind.max_tokens)} tokens{streamed}"
    )


def _recorded(settings: Settings) -> str:
    return f"{settings.record}, {'steps' if settings.steps else 'no steps'}"


def _reality(side: Summary) -> str:
    return "emulated" if side.emulated else "real"


def _model_shape(settings: Settings) -> tuple[int, int] | None:
    """Return layers and elements that a token takes in all of them; None if not recorded."""
    views = [view for view in settings.kv_views or () if not view.role.endswith("scale")]
    if not views or any(axis.startswith("?") for view in views for axis in view.axes):
        return None
    layers = sum(view.layers for view in views if view.role != "v")
    return layers, sum(view.layers * prod(_sizes(view)) for view in views)


def _sizes(view: KvView) -> Iterator[int]:
    for axis in view.axes:
        name, _, size = axis.partition(" ")
        if name not in _PLACES and size.isdecimal():
            yield int(size)


def _shape(shape: tuple[int, int] | None) -> str:
    layers, elements = shape or (0, 0)
    return f"{layers:,} layers, {elements:,} elements a token"


def _listed(before: Settings | None, after: Settings | None) -> Iterator[Difference]:
    """Yield the settings that differ and decide nothing."""
    if not (before and after):
        return
    known = dict.fromkeys([*before.listed, *after.listed])
    values = [("model", before.model, after.model), ("steps", before.steps, after.steps)]
    values += [(name, before.listed.get(name), after.listed.get(name)) for name in known]
    for name, one, other in values:
        if one != other:
            rule = f"setting-{name.replace('_', '-')}"
            yield Difference(
                Aspect.COMPARABILITY,
                rule,
                name.replace("_", " "),
                _setting(name, one),
                _setting(name, other),
                decides=False,
            )


def _setting(name: str, value: Any) -> str:
    if name in _COMMAND_LINES and isinstance(value, list) and value:
        return shlex.join(map(str, value))
    if name == ATTENTION and value is None:
        return "not known"
    return _shown(value)


def _shown(value: Any) -> str:
    if value is None:
        return "not given"
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, list):
        return listed([str(one) for one in value])
    return str(value)
