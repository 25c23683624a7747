"""The emulated engine over HTTP: vLLM's routes, batching, and answers that never depend on load."""

import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from emulated import ROOT, build, prepare

from kvtrace_cli.analysis.model import Verdict
from kvtrace_cli.analysis.reconcile import reconcile
from kvtrace_cli.capture.server import free_port
from kvtrace_cli.config import RecordingConfig
from kvtrace_cli.dumps.recording import read_recording

MODEL = ROOT / "kvtrace_cli/data/qwen3-14b"


class Engine:
    """A running emulated engine, recorded by the injector."""

    def __init__(self, directory, *arguments):
        built = build("plain")
        self.run_dir, environment = prepare(
            built, directory, kernels=RecordingConfig.kernels, ring_events=1 << 18
        )
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

    def complete(self, prompt, max_tokens, **more):
        body = {"model": "m", "prompt": prompt, "max_tokens": max_tokens}
        return self.http.post("/v1/completions", json=body | more)

    def stop(self):
        self.http.close()
        self.process.terminate()
        output, _ = self.process.communicate(timeout=20)
        assert self.process.returncode == 0, output
        return output

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
