"""What CUPTI saw run in each process: records and the names that they count."""

import polars as pl

from kvtrace_cli.dumps import abi
from kvtrace_cli.dumps.json_lines import text_of
from kvtrace_cli.dumps.reader import read_activities
from kvtrace_cli.dumps.run_dir import RunDir
from kvtrace_cli.dumps.schema import ActivityDump, Dump
from kvtrace_cli.errors import DumpFormatError


def read_run_activities(run_dir: RunDir) -> tuple[ActivityDump, ...]:
    """Read the activity records of every process; none in a run that CUPTI did not observe.

    Raises:
        RunDirError: a file of names cannot be read.
        DumpFormatError: a packed file is damaged; or a file of records is, is of another ABI
            version or process, or has records that cannot be.
    """
    return tuple(_read(run_dir, process_id) for process_id in run_dir.activity_files())


def _read(run_dir: RunDir, process_id: int) -> ActivityDump:
    path = run_dir.activity_files()[process_id]
    dump = read_activities(path)
    if dump.header.process_id != process_id:
        raise DumpFormatError(
            f"{path}: written by process {dump.header.process_id}, its name says {process_id}; "
            "give it its own name again"
        )
    # A name is written, with the end of its line, before the first record that counts it.
    *names, _ = text_of(run_dir.activity_names(process_id)).split("\n")
    fault = _fault_in(dump, len(names))
    if fault is not None:
        raise DumpFormatError(
            f"{path}: {fault}; the file is damaged or of a newer kvtrace, copy it again or record "
            "again"
        )
    return ActivityDump(dump, tuple(names))


def _fault_in(dump: Dump, names: int) -> str | None:
    """Say what the first record that cannot be is like; None if all can."""
    known = list(abi.enumerators("kvtrace_activity_kind"))
    no_name = abi.constant("KVTRACE_ACTIVITY_NO_NAME")
    named = pl.col("activity_kind") == abi.constant("KVTRACE_ACTIVITY_KERNEL")
    faults = {
        "is of an unknown kind": ~pl.col("activity_kind").is_in(known),
        f"counts a name beyond the {names} there are": named & (pl.col("name_id") >= names),
        "has a name and is no kernel": ~named & (pl.col("name_id") != no_name),
        "ends before it begins": pl.col("gpu_cupti_end_ns") < pl.col("gpu_cupti_begin_ns"),
    }
    for fault, is_wrong in faults.items():
        wrong = dump.records.select(is_wrong.arg_true()).to_series()
        if len(wrong):
            return f"record {wrong[0]} {fault}"
    return None
