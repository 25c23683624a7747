"""Hooks of vLLM's first model runner, `vllm.v1.worker.gpu_model_runner`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .shared_hooks import argument, draft, install_shared, pair_rows, run_output

if TYPE_CHECKING:
    from collections.abc import Generator
    from types import ModuleType

    from .session import Session

MODULE = "vllm.v1.worker.gpu_model_runner"


def install(session: Session, module: ModuleType) -> None:
    """Hook the module's runner."""
    runner_class = module.GPUModelRunner
    install_shared(session, runner_class)
    session.wrap(runner_class, "execute_model", execute_model)
    session.wrap(runner_class, "_prepare_inputs", prepare_inputs)
    session.wrap(runner_class, "_determine_batch_execution_and_padding", determine_padding)
    session.wrap(runner_class, "_get_slot_mappings", get_slot_mappings)
    session.wrap(runner_class, "sample_tokens", draft("drafter"))


def execute_model(
    session: Session, runner: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Generator[None, Any, None]:
    """Follow a scheduler output; complain if its rows were prepared and no step began."""
    session.prepared = None
    yield from run_output(session, runner, argument(args, kwargs, 0, "scheduler_output"))
    if session.prepared is not None:
        raise RuntimeError("rows were prepared, and their slot mappings never asked for")


def prepare_inputs(
    session: Session, runner: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Generator[None, Any, None]:
    """Note the step's rows; how far they are padded is found out after this call."""
    yield
    output = argument(args, kwargs, 0, "scheduler_output")
    counts = argument(args, kwargs, 1, "num_scheduled_tokens").tolist()
    batch = runner.input_batch
    positions = batch.num_computed_tokens_cpu[: len(counts)].tolist()
    rows = int(output.total_num_scheduled_tokens)
    session.prepared = {
        "requests": pair_rows(batch.req_ids, counts, positions, rows),
        "rows": rows,
        "padded_rows": None,
        "graph_mode": None,
    }
    if not hasattr(type(runner), "_get_slot_mappings"):
        _begin(session, runner, session.prepared)


def determine_padding(
    session: Session, _runner: Any, _args: tuple[Any, ...], _kwargs: dict[str, Any]
) -> Generator[None, Any, None]:
    """Note the graph mode and the padding of a prepared step."""
    mode, descriptor, *_ = yield
    if session.prepared is not None:
        session.prepared["graph_mode"] = str(mode.name)
        session.prepared["padded_rows"] = int(descriptor.num_tokens)


def get_slot_mappings(
    session: Session, runner: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Generator[None, Any, None]:
    """Begin the prepared step: the slots are what the kernels are launched with, and come next.

    They are shorter than the padded batch where the cache is written inside of attention.
    """
    padded_rows = argument(args, kwargs, 0, "num_tokens_padded")
    if session.prepared is not None:
        session.prepared["padded_rows"] = int(padded_rows)
        _begin(session, runner, session.prepared)
    yield


def _begin(session: Session, runner: Any, step: dict[str, Any]) -> None:
    session.prepared = None
    session.begin_forward(runner, **step)
