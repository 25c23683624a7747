"""Hooks of vLLM's second model runner, `vllm.v1.worker.gpu.model_runner`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .engine_facts import missing_fields
from .shared_hooks import argument, draft, dummy, install_shared, pair_rows, run_output

if TYPE_CHECKING:
    from collections.abc import Generator
    from types import ModuleType

    from .session import Running, Session

MODULE = "vllm.v1.worker.gpu.model_runner"


def install(session: Session, module: ModuleType) -> None:
    """Hook the module's runner."""
    runner_class = module.GPUModelRunner
    install_shared(session, runner_class)
    session.wrap(runner_class, "execute_model", execute_model)
    session.wrap(runner_class, "prepare_inputs", prepare_inputs)
    session.wrap(runner_class, "sample_tokens", draft("speculator"))
    session.missing += missing_fields(
        "vllm.v1.worker.gpu.input_batch", "InputBatch", ("num_computed_tokens_np",)
    )


def execute_model(
    session: Session, runner: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Running:
    """Follow a scheduler output, or label a dummy run."""
    output = argument(args, kwargs, 0, "scheduler_output")
    if argument(args, kwargs, 2, "dummy_run"):
        rows = int(output.total_num_scheduled_tokens)
        return dummy(lambda _args, _kwargs: rows)(session, runner, args, kwargs)
    return run_output(session, runner, output)


def prepare_inputs(
    session: Session, runner: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Generator[None, Any, None]:
    """Begin the step once its rows are known: its launches come after this call."""
    batch = yield
    request_ids = list(batch.req_ids)
    counts = batch.num_scheduled_tokens.tolist()
    computed = getattr(batch, "num_computed_tokens_np", None)
    if computed is not None:
        positions = computed.tolist()
    else:
        # The number the runner itself starts from; every version has it here.
        output = argument(args, kwargs, 0, "scheduler_output")
        told = computed_tokens(output)
        positions = [told[request_id] for request_id in request_ids]
    rows = int(batch.num_tokens)
    session.begin_forward(
        runner,
        requests=pair_rows(request_ids, counts, positions, rows),
        rows=rows,
        padded_rows=int(batch.num_tokens_after_padding),
        graph_mode=_graph_mode((*args, *kwargs.values())),
    )


def computed_tokens(output: Any) -> dict[str, int]:
    """Return the computed tokens of each request that an output schedules."""
    cached = output.scheduled_cached_reqs
    told = {
        request.req_id: int(request.num_computed_tokens) for request in output.scheduled_new_reqs
    }
    told.update(zip(cached.req_ids, map(int, cached.num_computed_tokens)))
    return told


def _graph_mode(arguments: tuple[Any, ...]) -> str | None:
    """Return the mode of the argument that has one: its place differs by version."""
    for one in arguments:
        mode = getattr(one, "cg_mode", None)
        if mode is not None:
            return str(mode.name)
    return None
