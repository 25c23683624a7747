"""Why two runs may not be paired, or not yet."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, Final

from kvtrace_cli.analysis.activity_targets import is_seen_by_cupti, wanted_kernels
from kvtrace_cli.analysis.model import Reconciliation, Verdict
from kvtrace_cli.analysis.run_settings import ATTENTION, run_settings
from kvtrace_cli.dumps.schema import Recording

# What the observer itself changes, or what says nothing of the engine's work.
_OF_THE_OBSERVER: Final = ("record", "steps", "kv_views", "listed")
_NOT_LISTED: Final = ("kvtrace_version", "one_shot", "stamps", "bind", "command")


def doubts(result: Reconciliation, blocks: Recording, activities: Recording) -> Iterator[str]:
    """Yield why the runs cannot explain each other, one plain sentence each.

    Args:
        result: of `blocks`.
        blocks: the run that the Sanitizer observed.
        activities: the run that CUPTI observed.
    """
    if is_seen_by_cupti(blocks):
        yield "The first run was observed by CUPTI: it must be one without --observer cupti."
    elif result.verdict is not Verdict.AGREES:
        yield f"The first run is not whole by itself ({result.verdict.value}): {result.reasons[0]}"
    if not is_seen_by_cupti(activities):
        yield "The second run was not observed by CUPTI: record it with --observer cupti."
    yield from _unwhole(activities)
    yield from _settings(blocks, activities)


def _unwhole(activities: Recording) -> Iterator[str]:
    if activities.incomplete:
        yield "The second run did not end in order, so what came last may be missing."
    if is_seen_by_cupti(activities) and not wanted_kernels(activities.manifest):
        yield "The second run's manifest does not say which kernels are the targets."
    for activity in activities.activities:
        dump = activity.dump
        if dump.header.dropped_count:
            yield f"{dump.name}: {dump.header.dropped_count} activity records were dropped."
        if not dump.header.has("KVTRACE_FILE_CLOSED"):
            yield f"{dump.name}: was not closed in order, so what came last may be missing."
        if dump.header.first_failure_site:
            yield (
                f"{dump.name}: the observer failed (site {dump.header.first_failure_site}, result "
                f"{dump.header.first_failure_result})."
            )


def _settings(blocks: Recording, activities: Recording) -> Iterator[str]:
    first, second = _told(blocks), _told(activities)
    for name, value in first.items():
        is_unknown = name == ATTENTION and None in (value, second.get(name))
        if second.get(name) != value and not is_unknown:
            yield f"The runs differ in {name}: {value!r} and {second.get(name)!r}."


def _told(recording: Recording) -> dict[str, Any]:
    settings = run_settings(recording)
    told = {name: value for name, value in asdict(settings).items() if name not in _OF_THE_OBSERVER}
    return told | {
        name: value for name, value in settings.listed.items() if name not in _NOT_LISTED
    }
