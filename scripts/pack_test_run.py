#!/usr/bin/env python3
"""Copy a run directory into tests/data: compressed, absolute paths cut to their last part.

    python3 scripts/pack_test_run.py RUN_DIR... --out tests/data/NAME

With one RUN_DIR the copy is NAME itself, with several each goes to NAME/<its name>. The server log
and the injector's config stay behind: they hold nothing that a reader needs. No record is touched.
"""

import argparse
import gzip
import re
import shutil
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from kvtrace_cli.dumps.run_dir import RunDir

_ABSOLUTE_PATH = re.compile(r"/(?:[\w.+-]+/)+([\w.+-]+)")


def copy_text(source: Path, target: Path) -> None:
    """Copy a JSON text without the folders of the machine it comes from."""
    if source.exists():
        target.write_text(_ABSOLUTE_PATH.sub(r"\1", source.read_text()))


def dumps_of(source: RunDir) -> list[Path]:
    """List what is compressed: the dumps of either observer, and the engine plug-in's files."""
    activities = source.activity_files()
    return [
        *source.event_files(),
        *source.launch_files(),
        *activities.values(),
        *map(source.activity_names, activities),
        *source.step_files().values(),
        *source.layout_files().values(),
    ]


def pack(source: RunDir, target: RunDir) -> None:
    """Copy one run directory."""
    target.raw.mkdir(parents=True)
    copy_text(source.manifest, target.manifest)
    copy_text(source.requests, target.requests)
    for marker in (source.complete_marker, source.incomplete_marker):
        if marker.exists():
            (target.path / marker.name).touch()
    for journal in source.journals():
        copy_text(journal, target.raw / journal.name)
    for file in dumps_of(source):
        # No file name and no time in it, so that packing twice gives the same bytes.
        packed = gzip.compress(file.read_bytes(), 9, mtime=0)
        (target.raw / f"{file.name}.gz").write_bytes(packed)


def main() -> None:
    """Pack what the command line names."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("run_dirs", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    shutil.rmtree(args.out, ignore_errors=True)
    for path in args.run_dirs:
        target = args.out if len(args.run_dirs) == 1 else args.out / path.name
        pack(RunDir(path), RunDir(target))


if __name__ == "__main__":
    main()
