"""However a run ends, its manifest and its marker say so, and the error what was recorded."""

import json
from pathlib import Path

import pytest

from kvtrace_cli.capture.ledger import Ledger
from kvtrace_cli.capture.manifest import Manifest
from kvtrace_cli.capture.preflight import Preflight
from kvtrace_cli.capture.run_dir import create_run_dir
from kvtrace_cli.config import ExecConfig
from kvtrace_cli.errors import ConfigError, InconclusiveError, RunFailedError


@pytest.fixture
def ledger(tmp_path):
    manifest = Manifest.of(
        ExecConfig(("true",)), Preflight(), command=["true"], working_directory=Path("/")
    )
    return Ledger(create_run_dir(tmp_path / "run", force=False), manifest)


def told(ledger):
    """Return how it ended by the manifest, and whether the directory is incomplete."""
    outcome = json.loads(ledger.run_dir.manifest.read_text())["outcome"]
    return outcome["status"], outcome["error"], ledger.run_dir.is_incomplete


def test_an_end_in_order_completes_the_directory(ledger):
    with ledger.end_noted():
        ledger.begin({}, {})
        assert told(ledger) == ("running", None, True)
    assert told(ledger) == ("complete", None, False)


@pytest.mark.parametrize("kind", [RunFailedError, InconclusiveError])
def test_what_failed_is_noted_and_told_with_what_is_left(ledger, kind):
    left = f"it broke\nnothing was recorded; what else is known is in {ledger.run_dir.path}"
    with pytest.raises(kind) as caught, ledger.end_noted():
        raise kind("it broke")
    assert str(caught.value) == left
    assert told(ledger) == ("failed", "it broke", True)


@pytest.mark.parametrize(
    ("error", "status", "noted"),
    [
        (KeyboardInterrupt(), "interrupted", "KeyboardInterrupt"),
        (ConfigError("no room"), "failed", "no room"),
    ],
)
def test_any_other_end_is_noted_and_passed_on_as_it_is(ledger, error, status, noted):
    with pytest.raises(type(error)) as caught, ledger.end_noted():
        raise error
    assert caught.value is error
    assert told(ledger) == (status, noted, True)
