"""A replica's engine core in a process of its own: the scheduler, with workers below it."""

import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from kvtrace_cli.emulator.children import ChildLostError, Link
from kvtrace_cli.emulator.engine_core import EngineCore
from kvtrace_cli.emulator.executors import Executor
from kvtrace_cli.emulator.lockstep import LockstepMember
from kvtrace_cli.emulator.request import EngineDeadError, RequestOrder
from kvtrace_cli.emulator.scheduler import Scheduler

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class CoreSettings:
    """What the core of one replica is made of."""

    make_executor: Callable[[], Executor]
    make_scheduler: Callable[[], Scheduler]
    pass_s: float
    # Whether there are other replicas.
    in_lockstep: bool


def serve_core(link: Link, settings: CoreSettings) -> None:
    """Be an engine core: do what the front end says, until it is gone."""
    try:
        executor = settings.make_executor()
    except ChildLostError as error:
        _LOG.error("EngineCore failed to start: %s", error)
        return
    lockstep = LockstepMember(link)
    core = EngineCore(
        executor,
        settings.make_scheduler(),
        pass_s=settings.pass_s,
        agree=lockstep.agree if settings.in_lockstep else None,
        on_death=lambda reason: link.send("dead", str(reason)),
    )
    core.start()
    link.send("ready")
    for kind, *arguments in link.messages():
        if kind == "add":
            _add(core, link, *arguments)
        elif kind == "join":
            core.join(*arguments)
        elif kind == "agreed":
            lockstep.take(*arguments)
        elif kind == "fault":
            core.fault_next_decode()
        elif kind == "stop":
            break
    lockstep.end()
    core.stop()
    executor.stop()


def _add(core: EngineCore, link: Link, order: RequestOrder) -> None:
    def tell(token: int | Exception) -> None:
        if not isinstance(token, Exception):  # what ends a request here is the core's own end
            link.send("token", order.request_id, token)

    with suppress(EngineDeadError):
        core.submit(order.request(tell))
