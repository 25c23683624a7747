import io
import time
from contextlib import closing

from rich.console import Console

from kvtrace_cli import console
from kvtrace_cli.capture.live import LiveCounters
from kvtrace_cli.capture.progress import Progress, describe_counters

COUNTERS = LiveCounters(event_files=1, events=125600, launches=920)


def test_without_a_terminal_each_phase_is_one_plain_line(capsys):
    with closing(Progress()) as progress:
        for _ in range(3):
            progress.phase("compiling")
            progress.counters(COUNTERS)
        progress.phase("ready")
        progress.detail("not asked for")
        progress.note("warn: [odd] name")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "kvtrace: compiling\nkvtrace: ready\nkvtrace: warn: [odd] name\n"


def test_details_come_when_asked_for(capsys):
    with closing(Progress(verbose=True)) as progress:
        progress.detail("the command")
    assert capsys.readouterr().err == "kvtrace: the command\n"


def test_a_terminal_shows_the_counts_while_they_change(monkeypatch, tmp_path):
    with (tmp_path / "screen").open("w") as file:
        monkeypatch.setattr(console, "err", Console(file=file, force_terminal=True, width=100))
        with closing(Progress()) as progress:
            progress.phase("measured request 1")
            progress.counters(COUNTERS, "3 answered")
            time.sleep(0.3)
    assert "3 answered, 125,600 block events" in (tmp_path / "screen").read_text()


def test_a_narrow_terminal_shows_how_many_ranks_record(monkeypatch, tmp_path):
    with (tmp_path / "screen").open("w") as file:
        monkeypatch.setattr(console, "err", Console(file=file, force_terminal=True, width=80))
        with closing(Progress()) as progress:
            progress.phase("capturing graphs")
            progress.counters(COUNTERS, "ranks 7/8")
            time.sleep(0.3)
    assert "capturing graphs: ranks 7/8, 125,600 block events" in (tmp_path / "screen").read_text()


def test_a_terminal_that_another_program_prints_on_has_no_line_that_changes(monkeypatch, tmp_path):
    with (tmp_path / "screen").open("w") as file:
        monkeypatch.setattr(console, "err", Console(file=file, force_terminal=True, width=100))
        with closing(Progress(live=False)) as progress:
            progress.phase("the command runs")
            progress.counters(COUNTERS)
            time.sleep(0.3)
    assert (tmp_path / "screen").read_text() == "kvtrace: the command runs\n"


def test_a_terminal_that_is_gone_does_not_stop_a_run(monkeypatch):
    class Gone(io.StringIO):
        def write(self, _text):
            raise OSError(5, "Input/output error")

    monkeypatch.setattr(console, "err", Console(file=Gone()))
    Progress().note("nobody reads this")


def test_drops_are_said_even_if_there_are_none():
    assert describe_counters(COUNTERS) == ("125,600 block events, 920 launch records, 0 dropped")
