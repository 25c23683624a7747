import pytest

from kvtrace_cli.capture.engine_arguments import has_option, option_value
from kvtrace_cli.capture.parallel import AskedParallel, ParallelSizes, asked_parallel


@pytest.mark.parametrize(
    ("arguments", "sizes"),
    [
        ("", ParallelSizes()),
        ("--tensor-parallel-size 2", ParallelSizes(tensor=2)),
        ("--tensor_parallel_size=4 -tp 2", ParallelSizes(tensor=2)),
        ("-tp=2 --pipeline-parallel-size=3 -dp 4", ParallelSizes(2, 3, 4)),
        ("-pp 2 --data-parallel-size 2", ParallelSizes(pipeline=2, data=2)),
        # The engine refuses these itself.
        ("-tp two -pp 0 --data-parallel-size", ParallelSizes()),
        # Another option's value is none of ours.
        ("--served-model-name -x -tp 2", ParallelSizes(tensor=2)),
    ],
)
def test_sizes_are_read_as_vllm_reads_them(arguments, sizes):
    assert asked_parallel(arguments.split()).sizes == sizes


def test_all_ranks_of_all_dimensions_are_counted():
    assert ParallelSizes(2, 3, 4).total == 24


@pytest.mark.parametrize(
    ("arguments", "uses_ray"),
    [
        ("--distributed-executor-backend ray", True),
        ("--distributed-executor-backend=ray", True),
        ("-dp 2 -dpb ray", True),
        ("--distributed-executor-backend ray --distributed-executor-backend mp", False),
        ("--served-model-name ray", False),
    ],
)
def test_ray_is_known_by_its_option(arguments, uses_ray):
    assert asked_parallel(arguments.split()).uses_ray is uses_ray


@pytest.mark.parametrize(
    ("arguments", "is_partial"),
    [
        ("-tp 4", False),
        ("--nnodes 1", False),
        ("--nnodes 2 --node-rank 0", True),
        ("--headless", True),
        ("-dp 4 --data-parallel-size-local 4", False),
        ("-dp 4 -dpl 2", True),
        ("-dp 2 --data-parallel-rank 1", True),
        ("-dp 2 --data-parallel-external-lb", True),
    ],
)
def test_a_command_for_some_of_the_ranks_is_known_by_its_options(arguments, is_partial):
    assert asked_parallel(arguments.split()).is_partial is is_partial


def test_a_command_of_another_kind_asks_for_nothing():
    assert asked_parallel(["python", "script.py", "-n", "1"]) == AskedParallel()


def test_the_last_of_several_spellings_wins():
    arguments = ["--a-b", "1", "-a=2", "--a_b=3"]
    assert option_value(arguments, "--a-b", "-a") == "3"
    assert option_value(arguments, "--other") is None
    assert option_value(["--a-b"], "--a-b") == ""
    assert has_option(arguments, "--a-b")
    assert not has_option(arguments, "--b")
