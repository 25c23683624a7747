"""A real `vllm serve` on the CPU with engine plug-in and slot logger, and what they wrote."""

import json
import os
import signal
import socket
import subprocess
import time
from pathlib import Path

import httpx
from real_engine import CPU_ARGUMENTS, WITHIN_S

from kvtrace_cli.capture.plugin import with_engine_plugin

BATCHED_TOKENS = 64
KV_BLOCKS = 14


class TracedServer:
    """A `vllm serve` with the engine plug-in and the slot logger."""

    def __init__(self, setup, directory, *arguments):
        self.raw_dir = directory / "raw"
        self.raw_dir.mkdir()
        self.log = directory / "server.log"
        self.slot_file = directory / "slots.jsonl"
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            self.port = listener.getsockname()[1]
        command = [str(setup.python), "-m", "vllm.entrypoints.cli.main", "serve", str(setup.model)]
        command += ["--served-model-name", "tiny", "--host", "127.0.0.1", "--port", str(self.port)]
        command += ["--dtype", "bfloat16", "--load-format", "dummy", "--generation-config", "vllm"]
        command += ["--max-model-len", "384", "--max-num-seqs", "4"]
        command += ["--max-num-batched-tokens", str(BATCHED_TOKENS), "--enable-prefix-caching"]
        command += [*CPU_ARGUMENTS, "--num-gpu-blocks-override", str(KV_BLOCKS), *arguments]
        environment = with_engine_plugin(
            {
                **setup.environment,
                "PYTHONPATH": str(Path(__file__).parent / "slot_logger"),
                "SLOT_LOGGER_FILE": str(self.slot_file),
                "VLLM_PLUGINS": "slot_logger",
                "VLLM_NO_USAGE_STATS": "1",
                "HF_HUB_OFFLINE": "1",
            },
            raw_dir=self.raw_dir,
            injector=directory / "no-injector.so",
        )
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                command,
                env=environment,
                cwd=directory,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def wait_until_ready(self):
        deadline = time.monotonic() + WITHIN_S
        while True:
            assert self.process.poll() is None, self.log.read_text()[-3000:]
            assert time.monotonic() < deadline, self.log.read_text()[-3000:]
            try:
                if httpx.get(f"http://127.0.0.1:{self.port}/health").status_code == 200:
                    return
            except httpx.TransportError:
                time.sleep(0.2)

    def request(self, name, prompt, max_tokens):
        answer = httpx.post(
            f"http://127.0.0.1:{self.port}/v1/completions",
            json={
                "model": "tiny",
                "prompt": prompt,
                "max_tokens": max_tokens,
                "ignore_eos": True,
                "temperature": 0,
                "return_token_ids": True,
            },
            headers={"X-Request-Id": name},
            timeout=WITHIN_S,
        )
        assert answer.status_code == 200, answer.text
        assert len(answer.json()["choices"][0]["token_ids"]) == max_tokens

    def stop(self):
        """End its session: the engine writes each line as it happens, so nothing is lost."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(timeout=WITHIN_S)


class Steps:
    """The lines that the plug-in wrote in one process, and slots by the rule of docs/format.md."""

    def __init__(self, path):
        self.path = path
        self.layout_path = path.with_name(path.name.replace("steps.jsonl", "layout.json"))
        self.started, *self.lines = map(json.loads, self.path.read_text().splitlines())
        self.layout = json.loads(self.layout_path.read_text())
        self.forward = [line for line in self.lines if line.get("kind") == "forward"]

    def changes(self, field):
        return [change for line in self.lines for change in line.get(field, ())]

    def slots(self):
        """Return the slots of each forward step, its requests in row order."""
        (block_size,) = self.started["block_sizes"]
        tables, steps = {}, []
        for line in self.lines:
            for request_id in (*line.get("finished", ()), *line.get("preempted", ())):
                del tables[request_id]
            for request_id, _, (blocks,) in (*line.get("admitted", ()), *line.get("resumed", ())):
                tables[request_id] = list(blocks)
            for request_id, (blocks,) in line.get("grown", ()):
                tables[request_id] += blocks
            if line.get("kind") == "forward":
                steps.append(
                    [
                        tables[request_id][p // block_size] * block_size + p % block_size
                        for request_id, rows, first in line["requests"]
                        for p in range(first, first + rows)
                    ]
                )
        return steps
