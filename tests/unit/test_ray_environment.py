import json

import pytest

from kvtrace_cli.capture.ray_environment import COPIED_VARIABLE, JOB_VARIABLE, with_ray_workers
from kvtrace_cli.errors import ConfigError

OURS = {"KVTRACE_CONFIG": "/run/c", "CUDA_INJECTION64_PATH": "/i.so", "PYTHONPATH": "/site:/x"}


def composed(base=None, *, ours=OURS, python_path="/site"):
    return with_ray_workers((base or {}) | ours, ours, python_path=python_path)


def job_variables(environment):
    return json.loads(environment[JOB_VARIABLE])["runtime_env"]["env_vars"]


def test_vllm_is_told_to_copy_what_works_late():
    environment = composed()
    assert environment[COPIED_VARIABLE] == "KVTRACE_CONFIG,CUDA_INJECTION64_PATH"
    assert environment["PYTHONPATH"] == "/site:/x"


def test_the_job_starts_its_workers_with_it_and_with_the_plug_in_before_the_nodes_own_paths():
    assert job_variables(composed()) == {
        "KVTRACE_CONFIG": "/run/c",
        "CUDA_INJECTION64_PATH": "/i.so",
        "PYTHONPATH": "/site:${PYTHONPATH}",
    }


def test_a_preloaded_injector_has_to_be_there_from_the_start():
    environment = composed(ours=OURS | {"LD_PRELOAD": "/i.so"})
    assert "LD_PRELOAD" not in environment[COPIED_VARIABLE]
    assert job_variables(environment)["LD_PRELOAD"] == "/i.so"


def test_without_a_plug_in_paths_are_left_alone():
    ours = {"KVTRACE_CONFIG": "/run/c"}
    assert job_variables(composed({"PYTHONPATH": "/x"}, ours=ours, python_path=None)) == ours


def test_what_the_user_asks_for_is_kept():
    theirs = {
        "metadata": {"a": "b"},
        "runtime_env": {"pip": ["x"], "env_vars": {"MINE": "1", "PYTHONPATH": "/their"}},
    }
    base = {COPIED_VARIABLE: "MINE,KVTRACE_CONFIG", JOB_VARIABLE: json.dumps(theirs)}
    environment = composed(base)
    assert environment[COPIED_VARIABLE] == "MINE,KVTRACE_CONFIG,CUDA_INJECTION64_PATH"
    job = json.loads(environment[JOB_VARIABLE])
    assert job["metadata"] == {"a": "b"}
    assert job["runtime_env"]["pip"] == ["x"]
    assert job["runtime_env"]["env_vars"]["MINE"] == "1"
    assert job["runtime_env"]["env_vars"]["PYTHONPATH"] == "/site:/their"


@pytest.mark.parametrize(
    "text", ["{", "[]", '"x"', '{"runtime_env": 3}', '{"runtime_env": {"env_vars": []}}']
)
def test_a_job_that_is_none_is_refused_in_one_sentence(text):
    with pytest.raises(ConfigError, match=JOB_VARIABLE):
        composed({JOB_VARIABLE: text})
