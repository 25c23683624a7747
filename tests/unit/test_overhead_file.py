"""What was measured is kept whole, read again, put together, and told with its limits."""

import json
from dataclasses import replace

import pytest
from rich.console import Console

from kvtrace_cli.analysis.overhead import overhead
from kvtrace_cli.capture.overhead_file import (
    BatchTimes,
    Measurement,
    RoundTimes,
    ServerFacts,
    Setup,
    load,
    merged,
    save,
)
from kvtrace_cli.commands.overhead import tell
from kvtrace_cli.commands.overhead_told import notes_of, samples_of
from kvtrace_cli.errors import ExitCode, InconclusiveError, RunDirError
from kvtrace_cli.reports.overhead_tables import overhead_tables

SETUP = Setup(
    engine="vllm",
    emulated=False,
    model="Qwen3-14B",
    weights="dummy",
    rounds=2,
    batches=(1, 64),
    tokens=128,
    prefill=4096,
    side_by_side=2,
    gpus=("NVIDIA H200",),
    versions={"vllm": "0.26.0"},
    arguments=(),
)


def answered(start, number, arm, factor=1.0, *, cpu=0.3, gaps=3):
    batches = tuple(
        BatchTimes(size, (8.0 * factor,) * gaps, 120.0 / factor, cpu) for size in (1, 64)
    )
    return RoundTimes(start, 1, number, arm, 10.0 * number, batches, (200.0 * factor,) * 3)


def measurement(factor=1.002, starts=2, **changes):
    rounds = tuple(
        answered(start, number, arm, factor if arm == "blocks" else 1.0)
        for start in range(1, starts + 1)
        for number in (1, 2)
        for arm in ("clean", "blocks")
    )
    servers = tuple(
        ServerFacts(start, 1, arm, 60.0, 30_000, 10, 10, 0, "exit status 0", "SIGINT")
        for start in range(1, starts + 1)
        for arm in ("clean", "blocks")
    )
    made = Measurement(SETUP, ("clean", "blocks"), {}, 1, starts, servers, rounds, "complete")
    return replace(made, **changes)


def test_what_is_saved_is_read_again(tmp_path):
    path = save(tmp_path, measurement())
    assert path.name == "overhead.json"
    assert json.loads(path.read_text())["schema_version"] == 1
    assert load(tmp_path) == measurement()


def test_a_large_one_is_packed_and_takes_the_place_of_the_other(tmp_path):
    save(tmp_path, measurement())
    large = measurement(rounds=tuple(answered(1, n, "clean", gaps=30_000) for n in range(1, 5)))
    assert save(tmp_path, large).name == "overhead.json.gz"
    assert [path.name for path in tmp_path.iterdir()] == ["overhead.json.gz"]
    assert load(tmp_path) == large


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "other"}, "no kvtrace-overhead document"),
        ({"schema_version": 9}, "schema version 9, this kvtrace reads 1"),
        ({"rounds": [{}]}, r"rounds\[0\] has no start"),
        ({"arms": "clean"}, "overhead.arms is 'clean', expected a list"),
    ],
)
def test_a_damaged_file(tmp_path, change, message):
    path = save(tmp_path, measurement())
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(RunDirError, match=message):
        load(tmp_path)


def test_a_round_without_times(tmp_path):
    save(tmp_path, measurement(rounds=(replace(answered(1, 1, "clean"), prefill_ttft_ms=()),)))
    with pytest.raises(RunDirError, match=r"rounds\[0\] has no times"):
        load(tmp_path)


def test_no_measurement_at_all(tmp_path):
    with pytest.raises(RunDirError, match=r"no overhead\.json in it"):
        load(tmp_path)


def test_starts_of_several_measurements_are_put_together(tmp_path):
    one = (tmp_path / "a", measurement(starts=1))
    other = (tmp_path / "b", measurement(starts=2, ended="failed", error="it broke"))
    both = merged([one, other])
    assert (both.starts, {each.start for each in both.rounds}) == (3, {1, 2, 3})
    assert {each.start for each in both.servers} == {1, 2, 3}
    assert (both.ended, both.error) == ("failed", "it broke")
    assert merged([one]) == one[1]


def test_only_like_ones_are_put_together(tmp_path):
    one = (tmp_path / "a", measurement())
    other = (tmp_path / "b", measurement(setup=replace(SETUP, prefill=100, gpus=("GB10",))))
    with pytest.raises(RunDirError, match=r"b: not measured as .*a was \(prefill, gpus differ\)"):
        merged([one, other])
    with pytest.raises(RunDirError, match="given twice"):
        merged([one, one])


def notes(made):
    found = overhead(samples_of(made), made.arms, judge=not made.setup.emulated)
    return " ".join(notes_of(made, found))


def test_what_limits_the_figures_is_said():
    assert "Up to 2 servers on the card at once" in notes(measurement())
    assert "One server on the card" in notes(measurement(setup=replace(SETUP, side_by_side=1)))
    assert "no interval is known" in notes(measurement(starts=1))
    assert "Not complete (failed): why" in notes(measurement(ended="failed", error="why"))
    assert "Arm memcheck was left out: no GPU." in notes(
        measurement(skipped={"memcheck": "no GPU"})
    )
    dropped = (ServerFacts(2, 1, "blocks", 60.0, None, 10, 10, 5),)
    assert "Start 2, arm blocks: 5 records were dropped" in notes(measurement(servers=dropped))
    busy = (answered(1, 1, "clean", cpu=0.9), answered(1, 1, "blocks"))
    assert "Batch 64: the client that took the times" in notes(measurement(rounds=busy))
    assert "client" not in notes(measurement())
    zero = (answered(1, 1, "clean"), answered(1, 1, "blocks", gaps=1))
    zero = (replace(zero[0], prefill_ttft_ms=(0.0,)), zero[1])
    assert "1 figures of a round were 0" in notes(measurement(rounds=zero))


@pytest.mark.parametrize(
    ("made", "check", "code"),
    [
        (measurement(1.002), True, ExitCode.AGREES),
        (measurement(1.1), True, ExitCode.MISMATCH),
        (measurement(1.1), False, ExitCode.AGREES),
        (measurement(1.002, starts=1), True, ExitCode.INCONCLUSIVE),
        (measurement(1.002, setup=replace(SETUP, emulated=True)), True, ExitCode.INCONCLUSIVE),
    ],
)
def test_bars_decide_only_if_asked(capsys, made, check, code):
    assert tell(made, as_json=False, check=check) is code
    out = capsys.readouterr().out
    assert ("(EMULATED)" in out) == made.setup.emulated
    assert ("met" in out or "missed" in out or "cannot tell" in out) != made.setup.emulated


def test_nothing_measured_is_no_success():
    with pytest.raises(InconclusiveError, match="nothing was measured: interrupted"):
        tell(measurement(rounds=(), ended="interrupted"), as_json=False, check=False)


def test_the_document_has_all_but_the_rounds(capsys):
    tell(measurement(), as_json=True, check=False)
    document = json.loads(capsys.readouterr().out)
    assert (document["kind"], document["schema_version"]) == ("kvtrace-overhead-costs", 1)
    assert "rounds" not in document
    assert document["verdict"] == "met"
    assert document["setup"]["gpus"] == ["NVIDIA H200"]
    blocks = [one for one in document["costs"] if one["arm"] == "blocks"]
    assert blocks[0]["change_percent"] == pytest.approx(0.2)
    assert document["bars"][0]["verdict"] == "met"


def test_the_tables_fit_80_columns():
    long = measurement(1.5)
    rounds = tuple(
        replace(one, batches=tuple(replace(b, tokens_per_s=123_456.789) for b in one.batches))
        for one in long.rounds
    )
    drifting = tuple(
        replace(one, prefill_ttft_ms=(200.0 * 1.01**one.begin_s * (1 + (one.arm == "blocks")),))
        for one in rounds
    )
    made = replace(long, rounds=drifting)
    found = overhead(samples_of(made), made.arms)
    assert found.drifts
    console = Console(width=80, record=True, file=open("/dev/null", "w"))  # noqa: PTH123, SIM115
    for one in overhead_tables(found, emulated=False, notes=list(notes_of(made, found))):
        console.print(one)
    text = console.export_text()
    assert "123,456.789" in text
    assert "Drift over time that was taken out" in text
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
