"""Hooks that both of vLLM's model runners have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from .session import Hook, Running, Session


def argument(args: tuple[Any, ...], kwargs: dict[str, Any], index: int, name: str) -> Any:
    """Return a call's argument, however it was passed; None if it was left out."""
    return args[index] if index < len(args) else kwargs.get(name)


def install_shared(session: Session, runner_class: type) -> None:
    """Hook what is alike in both runners."""
    session.wrap(runner_class, "initialize_kv_cache", initialize_kv_cache)
    session.wrap(runner_class, "_dummy_run", dummy(_rows_of_dummy_run))
    session.wrap(runner_class, "profile_run", dummy())
    session.wrap(runner_class, "capture_model", dummy())
    session.wrap(runner_class, "profile_cudagraph_memory", dummy(), optional=True)


def initialize_kv_cache(
    session: Session, runner: Any, _args: tuple[Any, ...], _kwargs: dict[str, Any]
) -> Generator[None, Any, None]:
    """Write the layout once the tensors exist, and again if they are made again."""
    yield
    session.cache_initialised(runner)


def dummy(
    rows_of: Callable[[tuple[Any, ...], dict[str, Any]], int | None] = lambda _args, _kwargs: None,
) -> Hook:
    """Return a hook that makes a call one dummy step, with all that it calls."""

    def hook(
        session: Session, runner: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Generator[None, Any, None]:
        begun = session.begin_dummy(runner, rows_of(args, kwargs))
        try:
            yield
        finally:
            if begun:
                session.end_dummy(runner)

    return hook


def draft(speculator: str) -> Hook:
    """Return a hook for `sample_tokens`, where a speculator runs its passes.

    Args:
        speculator: the runner's attribute that holds it, if there is one.
    """

    def hook(
        session: Session, runner: Any, _args: tuple[Any, ...], _kwargs: dict[str, Any]
    ) -> Running:
        # Without a state there was no forward pass, or another rank samples.
        waiting = getattr(runner, "execute_model_state", None) is not None
        if not waiting or getattr(runner, speculator, None) is None:
            return None
        return _draft_step(session, runner)

    return hook


def pair_rows(
    request_ids: Sequence[str], counts: Sequence[int], positions: Sequence[int], rows: int
) -> list[tuple[str, int, int]]:
    """Return a step's requests in row order: (request id, rows, position of its first row).

    Raises:
        ValueError: the requests do not have as many rows as the step.
    """
    if sum(counts) != rows or not len(request_ids) == len(counts) == len(positions):
        raise ValueError(
            f"rows of {len(request_ids)} requests: found {counts} from {positions}, expected "
            f"{rows} in all"
        )
    return list(zip(request_ids, counts, positions))


def run_output(session: Session, runner: Any, output: Any) -> Generator[None, Any, None]:
    """Follow one scheduler output through `execute_model`."""
    session.begin_output(output)
    try:
        yield
    finally:
        session.end_output(runner)


def _draft_step(session: Session, runner: Any) -> Generator[None, Any, None]:
    session.begin_draft(runner)
    try:
        yield
    finally:
        session.end_draft(runner)


def _rows_of_dummy_run(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | None:
    rows = argument(args, kwargs, 0, "num_tokens")
    return None if rows is None else int(rows)
