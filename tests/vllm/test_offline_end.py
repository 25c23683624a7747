"""A script with an `LLM` in it: the process that runs the model is asked to end in order, last."""

import json
import shutil
import subprocess

import pytest
from real_engine import WITHIN_S

from kvtrace_cli.capture.engine import let_engine_end
from kvtrace_cli.capture.plugin import with_engine_plugin

pytestmark = pytest.mark.vllm

# Stands in for the injector, which loads nothing without a GPU: says who asked, and when.
ASKED = """
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
extern "C" void kvtrace_set_step(unsigned) {}
extern "C" void kvtrace_end_recording() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    int file = open(getenv("ASKED_FILE"), O_WRONLY | O_CREAT | O_APPEND, 0600);
    dprintf(file, "[%d, %lld]\\n", getpid(), now.tv_sec * 1000000000ll + now.tv_nsec);
    close(file);
}
"""
SCRIPT = """
import multiprocessing, sys
from vllm import LLM, SamplingParams
from vllm.v1.engine import utils
from vllm.v1.executor import multiproc_executor
if __name__ == "__main__":
    # The CPU platform insists on spawn; on a GPU a script's engine is forked.
    for module in (utils, multiproc_executor):
        module.get_mp_context = lambda: multiprocessing.get_context(sys.argv[2])
    llm = LLM(model=sys.argv[1], skip_tokenizer_init=True, load_format="dummy", dtype="bfloat16",
              enforce_eager=True, max_model_len=384, max_num_seqs=4, block_size=32,
              kv_cache_memory_bytes=64 * 1024**2)
    prompt = {"prompt_token_ids": list(range(5, 90))}
    llm.generate([prompt], SamplingParams(max_tokens=4, ignore_eos=True, detokenize=False))
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    if shutil.which("g++") is None:
        pytest.skip("g++ is not installed")
    directory = tmp_path_factory.mktemp("library")
    (directory / "asked.cpp").write_text(ASKED)
    built = directory / "asked.so"
    subprocess.run(["g++", "-shared", "-fPIC", "-o", built, directory / "asked.cpp"], check=True)
    return built


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_the_process_that_runs_the_model_is_asked_once_after_its_last_step(
    method, setup, library, tmp_path
):
    (tmp_path / "raw").mkdir()
    (tmp_path / "script.py").write_text(SCRIPT)
    environment = {
        **setup.environment,
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "LD_PRELOAD": str(library),
        "ASKED_FILE": str(tmp_path / "asked"),
    }
    # What a script has by default.
    del environment["VLLM_ENABLE_V1_MULTIPROCESSING"]
    let_engine_end(environment)
    done = subprocess.run(
        [setup.python, "script.py", setup.model, method],
        env=with_engine_plugin(environment, raw_dir=tmp_path / "raw", injector=library),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    (path,) = (tmp_path / "raw").glob("*.steps.jsonl")
    steps = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line for line in steps if line["event"] == "failed"] == []
    assert "forward" in {line.get("kind") for line in steps}
    ((process_id, asked_ns),) = map(json.loads, (tmp_path / "asked").read_text().splitlines())
    assert path.name == f"{process_id}.steps.jsonl"
    assert steps[-1]["host_monotonic_ns"] < asked_ns
