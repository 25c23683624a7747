"""The emulated engine over HTTP: vLLM's routes, batching, and answers that never depend on load."""

import json
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import polars as pl
import pytest
from emulated import ROOT, build, prepare

from kvtrace_cli.analysis.model import Verdict
from kvtrace_cli.analysis.reconcile import reconcile
from kvtrace_cli.analysis.steps import step_tables
from kvtrace_cli.analysis.stores import located_stores
from kvtrace_cli.capture.server import free_port
from kvtrace_cli.config import Record, RecordingConfig
from kvtrace_cli.dumps.recording import read_recording

LAYERS = 40
MODEL = ROOT / "kvtrace_cli/data/qwen3-14b"


class Engine:
    """A running emulated engine, recorded by the injector."""

    def __init__(self, directory, *arguments, record=Record.BLOCKS):
        built = build("plain")
        self.run_dir, environment = prepare(
            built, directory, kernels=RecordingConfig.kernels, ring_events=1 << 18, record=record
        )
        environment["KVTRACE_STEPS"] = str(self.run_dir.raw)
        environment["KVTRACE_INJECTOR"] = str(built.injector)
        port = free_port()
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "kvtrace_cli.emulator", "serve", MODEL),
                *("--served-model-name", "m", "--port", str(port)),
                *("--library", built.emulator, *arguments),
            ],
            env=environment | {"PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.http = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30, trust_env=False)
        deadline = time.monotonic() + 20
        while not self._is_well():
            assert self.process.poll() is None, self.process.stdout.read()
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def _is_well(self):
        try:
            return self.http.get("/health").status_code == 200
        except httpx.TransportError:
            return False

    def complete(self, prompt, max_tokens, *, request_id=None, **more):
        body = {"model": "m", "prompt": prompt, "max_tokens": max_tokens}
        headers = {"X-Request-Id": request_id} if request_id else {}
        return self.http.post("/v1/completions", json=body | more, headers=headers)

    def stop(self):
        self.http.close()
        self.process.terminate()
        output, _ = self.process.communicate(timeout=20)
        assert self.process.returncode == 0, output
        return output

    def lines(self):
        """The steps file."""
        (path,) = self.run_dir.raw.glob("*.steps.jsonl")
        return [json.loads(line) for line in path.read_text().splitlines()]

    def written(self):
        """Each row that a request owns, with the slot it should and those it did write."""
        recording = read_recording(self.run_dir)
        found = reconcile(recording)
        assert (found.verdict, found.reasons) == (Verdict.AGREES, ())
        stores = located_stores(found, recording)
        assert stores["in_kv_tensor"].all()
        row = ["process_id", "step_stamp", "row"]
        by_row = stores.group_by(row).agg(
            "written_slot", pl.struct("layer_index", "part").alias("places")
        )
        slots = step_tables(recording).slots
        joined = slots.join(by_row, on=row, how="full", validate="1:1", coalesce=True)
        # No row that nobody owns has stored anything.
        assert joined.height == slots.height
        return joined

    def reconciled(self):
        return reconcile(read_recording(self.run_dir))


@pytest.fixture
def engine(tmp_path):
    made = Engine(tmp_path / "run")
    yield made
    if made.process.poll() is None:
        made.stop()


def test_routes(engine):
    models = engine.http.get("/v1/models").json()
    assert [card["id"] for card in models["data"]] == ["m"]
    answer = engine.complete([1, 2, 3], 4).json()
    assert answer["usage"] == {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}
    assert len(answer["choices"][0]["token_ids"]) == 4
    assert engine.http.get("/nowhere").status_code == 404


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"prompt": "a text"}, 400),
        ({"prompt": []}, 400),
        ({"prompt": [1, -1]}, 400),
        ({"prompt": [1], "max_tokens": 0}, 400),
        ({"prompt": [1] * 1020, "max_tokens": 8}, 400),
        ({"prompt": [1], "model": "other"}, 404),
        ([], 400),
    ],
)
def test_bad_requests_are_refused(engine, body, status):
    answer = engine.http.post("/v1/completions", json=body)
    assert answer.status_code == status
    assert answer.json()["error"]["message"]


def test_a_stream_has_the_tokens_of_the_whole_answer(engine):
    whole = engine.complete([5, 6], 5).json()["choices"][0]["token_ids"]
    answer = engine.complete([5, 6], 5, stream=True, stream_options={"include_usage": True})
    lines = [line for line in answer.text.splitlines() if line]
    assert lines[-1] == "data: [DONE]"
    chunks = [httpx.Response(200, text=line[6:]).json() for line in lines[:-1]]
    tokens = [token for chunk in chunks for one in chunk["choices"] for token in one["token_ids"]]
    assert tokens == whole
    assert chunks[-1]["usage"]["completion_tokens"] == 5


def test_twenty_at_once_are_batched_answered_alike_and_recorded(tmp_path):
    engine = Engine(tmp_path / "run", "--max-num-seqs", "20", "--capture-sizes", "1,2,4,8,16,32")
    prompts = [list(range(10, 20 + number)) for number in range(20)]
    alone = [engine.complete(prompt, 30).json()["choices"][0]["token_ids"] for prompt in prompts]
    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(lambda prompt: engine.complete(prompt, 30).json(), prompts))
    assert [answer["choices"][0]["token_ids"] for answer in answers] == alone
    output = engine.stop()
    ran = int(output.partition("target blocks that really ran: ")[2].split()[0])
    found = engine.reconciled()
    assert (found.verdict, found.reasons) == (Verdict.AGREES, ())
    assert found.block_events.height == ran
    shapes = {shape.expected_blocks // (40 * shape.replays) for shape in found.graphs}
    assert 1 in shapes
    assert max(shapes) > 1


def test_more_requests_than_sequences_wait_their_turn(tmp_path):
    engine = Engine(tmp_path / "run", "--max-num-seqs", "2", "--max-num-batched-tokens", "16")
    with ThreadPoolExecutor(7) as pool:
        answers = list(pool.map(lambda _: engine.complete([1] * 50, 9).json(), range(7)))
    assert {answer["usage"]["completion_tokens"] for answer in answers} == {9}
    engine.stop()
    found = engine.reconciled()
    assert found.verdict is Verdict.AGREES
    grids = found.launches["grid_dim_x"]
    # A chunk of a prompt is no more than the budget, and no replay has more than two rows.
    assert grids.max() == 16


def test_the_request_id_of_the_header_is_part_of_the_engines_ids(tmp_path):
    engine = Engine(tmp_path / "run")
    assert engine.complete([1, 2], 2, request_id="foo").json()["id"] == "cmpl-foo"
    streamed = engine.complete([1, 2], 2, request_id="bar", stream=True)
    assert '"id": "cmpl-bar"' in streamed.text
    assert re.fullmatch("cmpl-[0-9a-f]{32}", engine.complete([1, 2], 2).json()["id"])
    engine.stop()
    ids = [one[0] for line in engine.lines() for one in line.get("admitted", ())]
    assert [
        bool(re.fullmatch(f"cmpl-{name}-0-[0-9a-f]{{8}}", one))
        for name, one in zip(("foo", "bar", "[0-9a-f]{32}"), ids, strict=True)
    ] == [True] * 3


def test_a_mixed_load_with_preemption_writes_every_token_where_its_blocks_are(tmp_path):
    engine = Engine(
        tmp_path / "run",
        *("--max-num-seqs", "4", "--max-num-batched-tokens", "24", "--capture-sizes", "2,8"),
        *("--max-model-len", "64", "--num-gpu-blocks", "8", "--enable-prefix-caching"),
        record=Record.WRITES,
    )
    prompts = [[7] * (10 + 3 * number) for number in range(10)]
    with ThreadPoolExecutor(10) as pool:
        answers = list(pool.map(lambda prompt: engine.complete(prompt, 20).json(), prompts))
    assert {answer["usage"]["completion_tokens"] for answer in answers} == {20}
    engine.stop()
    lines = engine.lines()
    assert lines[0]["stamped"]
    for change in ("preempted", "resumed"):
        assert any(change in line for line in lines)
    assert any(line.get("padded_rows", 0) > line.get("rows", 0) for line in lines)
    assert any(computed for line in lines for _, computed, _ in line.get("admitted", ()))
    written = engine.written()
    expected = sum(line["rows"] for line in lines if line.get("kind") == "forward")
    assert written.height == expected
    places = {(layer, part) for layer in range(LAYERS) for part in ("K", "V")}
    for row in written.iter_rows(named=True):
        assert set(row["written_slot"]) == {row["expected_slot"]}
        found = [(place["layer_index"], place["part"]) for place in row["places"]]
        assert (len(found), set(found)) == (2 * LAYERS, places)


def test_passes_of_some_length_batch_requests_that_come_meanwhile(tmp_path):
    engine = Engine(tmp_path / "run", "--pass-ms", "40")
    begin = time.monotonic()
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda token: engine.complete([token] * 9, 8), range(3)))
    assert time.monotonic() - begin > 8 * 0.04
    engine.stop()
    assert any(len(line.get("requests", ())) == 3 for line in engine.lines())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--num-gpu-blocks", "64"], "--num-gpu-blocks: found 64, expected at least 65"),
        (["--block-size", "0"], "--block-size: found '0', expected a number, 1 or more"),
        (["--block-size", "none"], "--block-size: found 'none', expected a number, 1 or more"),
        (["--pass-ms", "nan"], "--pass-ms: found 'nan', expected milliseconds, 0 or more"),
        (["--capture-sizes", "1,-2"], "--capture-sizes: found '-2', expected a number, 1 or more"),
    ],
)
def test_a_cache_that_cannot_work_is_refused_in_one_sentence(arguments, message):
    done = subprocess.run(
        [
            *(sys.executable, "-m", "kvtrace_cli.emulator", "serve", MODEL, "--port", "1"),
            *("--library", build("plain").emulator, *arguments),
        ],
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert message in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
