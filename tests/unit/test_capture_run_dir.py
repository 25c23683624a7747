import stat

import pytest

from kvtrace_cli.capture.run_dir import create_run_dir, mark_complete
from kvtrace_cli.errors import RunDirError


def test_a_new_run_is_incomplete_and_private(tmp_path):
    run_dir = create_run_dir(tmp_path / "a/run", force=False)
    assert run_dir.is_incomplete
    for path in (run_dir.path, run_dir.raw):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
    mark_complete(run_dir)
    assert not run_dir.is_incomplete
    assert run_dir.complete_marker.exists()


def test_the_default_name_is_the_date(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert create_run_dir(None, force=False).path.name.startswith("kvtrace-out-20")


def test_an_empty_directory_is_taken(tmp_path):
    assert create_run_dir(tmp_path, force=False).is_incomplete


def test_force_replaces_a_run_but_not_what_the_user_added(tmp_path):
    run_dir = create_run_dir(tmp_path / "run", force=False)
    (run_dir.raw / "1.launches.kvt").touch()
    run_dir.summary.touch()
    mark_complete(run_dir)
    (run_dir.path / "notes.txt").touch()
    again = create_run_dir(tmp_path / "run", force=True)
    names = {path.name for path in again.path.iterdir()}
    assert names == {"INCOMPLETE", "raw", "notes.txt"}
    assert list(again.raw.iterdir()) == []


def test_force_never_touches_another_directory(tmp_path):
    (tmp_path / "thesis.tex").write_text("all of it")
    with pytest.raises(RunDirError, match="no run directory, so --force does not touch it"):
        create_run_dir(tmp_path, force=True)
    assert (tmp_path / "thesis.tex").read_text() == "all of it"


def test_a_file_is_no_place_for_a_run(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(RunDirError, match="not a directory"):
        create_run_dir(tmp_path / "file", force=True)
    with pytest.raises(RunDirError, match="cannot be written"):
        create_run_dir(tmp_path / "file/below", force=False)
