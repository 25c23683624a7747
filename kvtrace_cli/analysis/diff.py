"""Two summaries -> Diff: what can be compared, where the runs part, and whether one is slower."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from kvtrace_cli.analysis.diff_model import Aspect, Diff, Difference, DiffVerdict, TimeComparison
from kvtrace_cli.analysis.diff_settings import comparability, comparable_rules
from kvtrace_cli.analysis.diff_structure import compare_drops, compare_layouts, compare_structure
from kvtrace_cli.analysis.diff_times import (
    EACH_LAYER,
    compare_times,
    figure_rule,
    regressions,
    rule_of,
    slower_layers,
)
from kvtrace_cli.analysis.diff_words import counted, listed
from kvtrace_cli.analysis.pass_times import BATCHED_FIGURES, FIGURES
from kvtrace_cli.analysis.run_facts import OldGraph, Summary

MAX_REGRESSION: Final = 5.0


@dataclass(frozen=True)
class DiffOptions:
    """How two runs are compared: see `kvtrace diff --help`."""

    allowed: tuple[str, ...] = ()
    strict: bool = False
    with_times: bool = True
    max_regression: float = MAX_REGRESSION


def diff(before: Summary, after: Summary, options: DiffOptions, names: tuple[str, str]) -> Diff:
    """Compare two runs: set-up first, then structure, then times.

    Args:
        before: the first side, what the second is held against.
        after: the second side.
        options: what may differ, and how strict to be.
        names: of the sides.

    Returns:
        Diff. `inconclusive` if the set-ups cannot be compared or a side is incomplete, inconclusive
        or (the first) a mismatch; then nothing else is compared. Otherwise `differs` if a
        difference decides, else `same`.
    """
    setup = comparability(before, after, options.allowed)
    checks = list(comparable_rules(before, after))
    notes = list(_notes(before, after, strict=options.strict))
    is_comparable = not any(one.decides and one.aspect is Aspect.COMPARABILITY for one in setup)
    differences = list(setup)
    times: tuple[TimeComparison, ...] = ()
    if is_comparable:
        structure, equal = _structure(before, after, strict=options.strict)
        differences += structure
        checks += equal
        unjudged = _unjudged(before, after, options)
        times, said = _times(before, after, options, unjudged)
        differences += regressions(times)
        if times and before.times and after.times and not (before.emulated or after.emulated):
            slower, has_looked = slower_layers(
                before.times, after.times, options.max_regression, times
            )
            differences += slower
            checks += [EACH_LAYER] if has_looked else []
        looked = [figure_rule(one) for one in times if not (one.regressed or one.has_few_samples)]
        checks += [rule for rule in looked if rule not in map(rule_of, unjudged)]
        notes += said
    else:
        notes.append("Structure and times were not compared.")
    return Diff(
        verdict=_verdict(differences, is_comparable=is_comparable),
        differences=tuple(differences),
        times=times,
        notes=tuple(notes),
        checks=_equal(checks, differences),
        before=names[0],
        after=names[1],
        emulated=before.emulated or after.emulated,
    )


def _equal(checks: Sequence[str], differences: Sequence[Difference]) -> tuple[str, ...]:
    """Return each rule once, without those of which something else differs."""
    differing = {one.rule for one in differences}
    return tuple(rule for rule in dict.fromkeys(checks) if rule not in differing)


def _verdict(differences: Sequence[Difference], *, is_comparable: bool) -> DiffVerdict:
    if not is_comparable:
        return DiffVerdict.INCONCLUSIVE
    decided = any(one.decides for one in differences)
    return DiffVerdict.DIFFERS if decided else DiffVerdict.SAME


def _notes(before: Summary, after: Summary, *, strict: bool) -> Iterator[str]:
    """Yield what was not compared, because a side has not recorded it."""
    sides = [side.settings for side in (before, after)]
    if not (sides[0] and sides[1]):
        return
    if not (sides[0].request_kinds or sides[1].request_kinds):
        yield "No requests were recorded: whole lives are compared, whatever was asked."
    if not (sides[0].steps and sides[1].steps):
        yield "Rows were not compared: steps were not recorded on both sides."
    if "blocks" in (sides[0].record, sides[1].record):
        yield "Writes and KV slots were not compared: blocks were recorded, not stores."
    if sides[0].kv_views is None or sides[1].kv_views is None:
        yield "KV layouts were not compared: not recorded on both sides."
    if not strict and _ran_at_once(before, after):
        yield (
            "Measured requests ran at once: how they were batched, and what passed between passes "
            "and tokens, is listed and decides nothing."
        )


def _ran_at_once(before: Summary, after: Summary) -> bool:
    sides = before.structure, after.structure
    return any(side is not None and not side.all_alone for side in sides)


def _structure(
    before: Summary, after: Summary, *, strict: bool
) -> tuple[list[Difference], tuple[str, ...]]:
    drops = list(compare_drops(before.dumps, after.dumps))
    looked = () if drops else ("drops",)
    if not (before.structure and after.structure and before.settings and after.settings):
        old = list(_old_structure(before, after))
        equal = () if old else ("kernels", "graphs")
        return [*old, *drops], (*equal, *looked)
    found = compare_structure(
        before.structure,
        after.structure,
        strict=strict,
        has_idle_ranks=any(
            (one.data_parallel or 1) > 1 for one in (before.settings, after.settings)
        ),
    )
    views = before.settings.kv_views, after.settings.kv_views
    layout = compare_layouts(*views)
    differences = [*([layout] if layout else []), *found.differences, *drops]
    is_equal = None not in views and not layout
    return differences, (*(["kv-layout"] if is_equal else []), *found.equal_rules, *looked)


def _old_structure(before: Summary, after: Summary) -> Iterator[Difference]:
    """Compare what a summary of version 1 has: kernels, and graphs with their replays."""
    one, other = (listed([kernel.name for kernel in side.kernels]) for side in (before, after))
    if one != other:
        where = "kernels that write the cache"
        yield Difference(Aspect.STRUCTURE, "kernels", where, one, other, decides=True)
    one, other = (listed(list(map(_old_graph, side.measured_graphs))) for side in (before, after))
    if one != other:
        where = "graphs of the measured requests"
        yield Difference(Aspect.STRUCTURE, "graphs", where, one, other, decides=True)


def _old_graph(graph: OldGraph) -> str:
    return f"{counted(graph.replays, 'replay')} of a {graph.nodes:,}-node graph"


def _times(
    before: Summary, after: Summary, options: DiffOptions, unjudged: Sequence[str]
) -> tuple[tuple[TimeComparison, ...], tuple[str, ...]]:
    if not options.with_times:
        return (), ("Times were not compared.",)
    if not (before.times and after.times):
        return (), ("Times were not compared: not recorded on both sides.",)
    times, notes = compare_times(
        before.times, after.times, options.max_regression, unjudged=unjudged
    )
    if times and (before.emulated or after.emulated):
        notes = (*notes, "Times of an emulated run are listed and decide nothing.")
    if not times:
        notes = (*notes, "No times were compared: no pass was measured on both sides.")
    return times, notes


def _unjudged(before: Summary, after: Summary, options: DiffOptions) -> tuple[str, ...]:
    """Return the names of figures that are listed and decide nothing."""
    if before.emulated or after.emulated:
        return FIGURES
    return BATCHED_FIGURES if not options.strict and _ran_at_once(before, after) else ()
