"""Open what one node of a run recorded: a run directory, or an archive of one."""

import gzip
import tarfile
import zlib
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from shutil import copyfileobj
from typing import Any, Final

from kvtrace_cli.dumps.run_dir import RunDir, open_run_dir, read_manifest
from kvtrace_cli.errors import RunDirError

ARCHIVE_ENDINGS: Final = (".tar.gz", ".tgz", ".tar")


@dataclass(frozen=True)
class NodeSource:
    """One node's run directory; `name` is what the user gave, without the folders."""

    name: str
    run_dir: RunDir
    manifest: dict[str, Any]


def open_source(path: Path, scratch: Path, *, allow_incomplete: bool) -> NodeSource:
    """Open a source; an archive is unpacked into `scratch`, which is empty.

    Raises:
        RunDirError: it is neither, is damaged, or its run did not end in order.
    """
    where = _unpack(path, scratch) if path.is_file() else path
    run_dir = open_run_dir(where, allow_incomplete=allow_incomplete)
    return NodeSource(path.absolute().name, run_dir, read_manifest(run_dir))


def _unpack(archive: Path, scratch: Path) -> Path:
    """Unpack an archive; return the run directory in it."""
    if not archive.name.endswith(ARCHIVE_ENDINGS):
        raise RunDirError(
            f"{archive}: found a file, expected a run directory or an archive of one that ends in "
            f"{', '.join(ARCHIVE_ENDINGS)}"
        )
    try:
        with tarfile.open(archive) as packed:
            for member in packed:
                _unpack_member(archive, packed, member, scratch)
    except (tarfile.TarError, gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise RunDirError(
            f"{archive}: not a whole archive ({error}); pack it or copy it again"
        ) from error
    except OSError as error:
        raise RunDirError(f"{archive}: cannot be unpacked ({error})") from error
    manifests = sorted(scratch.rglob("manifest.json"))
    if len(manifests) != 1:
        raise RunDirError(
            f"{archive}: found {len(manifests)} run directories in it, expected one; pack one with "
            "`tar -czf NODE.tar.gz DIR`"
        )
    return manifests[0].parent


def _unpack_member(
    archive: Path, packed: tarfile.TarFile, member: tarfile.TarInfo, scratch: Path
) -> None:
    """Write one file; nothing in an archive may point out of it."""
    place = PurePosixPath(member.name)
    if place.is_absolute() or ".." in place.parts or not (member.isfile() or member.isdir()):
        raise RunDirError(
            f"{archive}: holds {member.name!r}, expected the plain files of a run directory; pack "
            "it again"
        )
    target = scratch / place
    content = packed.extractfile(member)
    if content is None:
        target.mkdir(parents=True, exist_ok=True)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    with content, target.open("xb") as file:
        copyfileobj(content, file)
