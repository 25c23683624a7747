"""Where an export goes: whole or not at all, and never over what is no export."""

from pathlib import Path

import pytest

from kvtrace_cli.errors import ConfigError
from kvtrace_cli.exports.target import COLUMNS_FILE, fresh_target


def put(path, *, force=False, text="new", fails=False):
    with fresh_target(path, force=force) as partial:
        partial.write_text(text)
        assert force or not path.exists()
        if fails:
            raise ZeroDivisionError


def entries(path):
    return sorted(one.name for one in path.iterdir())


def test_what_was_written_is_in_its_place_at_the_end(tmp_path):
    put(tmp_path / "a" / "out.pftrace")
    assert entries(tmp_path / "a") == ["out.pftrace"]


def test_nothing_is_left_of_an_export_that_fails(tmp_path):
    target = tmp_path / "out.pftrace"
    target.write_text("old")
    with pytest.raises(ZeroDivisionError):
        put(target, force=True, fails=True)
    assert entries(tmp_path) == ["out.pftrace"]
    assert target.read_text() == "old"


def test_what_is_there_is_replaced_with_force_only(tmp_path):
    target = tmp_path / "out.pftrace"
    put(target, text="old")
    with pytest.raises(ConfigError, match=r"out\.pftrace: already there; .* --force"):
        put(target)
    put(target, force=True)
    assert target.read_text() == "new"


def test_a_directory_that_is_no_export_is_never_replaced(tmp_path):
    target = tmp_path / "photos"
    target.mkdir()
    (target / "one.jpg").touch()
    with pytest.raises(ConfigError, match=r"photos: a directory without _columns\.json"):
        put(target, force=True)
    assert entries(target) == ["one.jpg"]
    (target / COLUMNS_FILE).touch()
    put(target, force=True)
    assert target.read_text() == "new"


def test_an_export_may_be_where_we_are(tmp_path, monkeypatch):
    target = tmp_path / "tables"
    target.mkdir()
    (target / COLUMNS_FILE).touch()
    monkeypatch.chdir(target)
    put(Path(), force=True)
    assert target.read_text() == "new"


def test_the_rest_of_an_interrupted_export_is_in_nobodys_way(tmp_path):
    rest = tmp_path / ".out.partial"
    rest.mkdir()
    (rest / "part").touch()
    put(tmp_path / "out")
    assert entries(tmp_path) == ["out"]


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"file.*cannot be written \(.+\); choose another -o"):
        put(tmp_path / "file" / "out")
