"""What is said and printed once a run ended in order, whoever started its program."""

import shlex

from kvtrace_cli.capture.ledger import Recorded
from kvtrace_cli.capture.progress import Progress, describe_counters, describe_ranks
from kvtrace_cli.commands.output_options import Outputs
from kvtrace_cli.commands.reconcile import reconcile_run
from kvtrace_cli.config import Observer
from kvtrace_cli.errors import ExitCode

NOT_ATTACHED = (
    "the injector never attached: no process patched a module that holds a wanted kernel, so "
    "nothing can be said of the cache writes; see `kvtrace doctor`, what the program printed, "
    "and whether --kernel names what this model uses"
)


NOT_OBSERVED = (
    "CUPTI saw nothing run in any process, so nothing can be said of this run; see what the "
    "program printed"
)


BY_CUPTI = (
    "CUPTI observed this run, so it has no blocks: that reconciling it is inconclusive, exit code "
    "4, is no fault. Pair it with a run of the same requests without --observer cupti: "
    "`kvtrace gap DIR_SANITIZER {}`"
)


ELSEWHERE = (
    "no rank is recorded in this directory; gather it with those of the nodes that have them: "
    "`kvtrace collect`"
)


def tell_recorded(recorded: Recorded, progress: Progress) -> None:
    """Say on stderr what was recorded, and where it is."""
    counters = recorded.counters
    path = recorded.run_dir.path
    if recorded.manifest.config.recording.enabled:
        is_by_cupti = recorded.manifest.config.recording.observer is Observer.CUPTI
        ranks = describe_ranks(recorded.ranks)
        said = f"{ranks} recorded" if ranks else "recorded"
        progress.note(f"{said} {describe_counters(counters)}")
        if recorded.ranks.is_partial and not recorded.ranks.recorded:
            progress.note(ELSEWHERE)
        elif not counters.attached:
            progress.note(NOT_OBSERVED if is_by_cupti else NOT_ATTACHED)
        elif is_by_cupti:
            progress.note(BY_CUPTI.format(shlex.quote(str(path))))
        if counters.first_failure is not None:
            progress.note(f"the injector reports a failure: {counters.first_failure}")
    progress.note(f"run directory: {path}")


def reconcile_recorded(recorded: Recorded, *, as_json: bool) -> ExitCode:
    """Reconcile the run and print the result; INCONCLUSIVE if the injector never attached.

    Raises:
        KvtraceError: see `reconcile_run`.
    """
    outputs = Outputs("kvtrace reconcile", as_json=as_json)
    code = reconcile_run(recorded.run_dir.path, allow_incomplete=False, outputs=outputs)
    if not recorded.counters.attached and code is ExitCode.AGREES:
        return ExitCode.INCONCLUSIVE
    return code
