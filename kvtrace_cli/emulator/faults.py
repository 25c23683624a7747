"""What can be made to go wrong in the emulated engine."""

from enum import Enum


class Fault(str, Enum):
    """Strikes at the first request for more than one token, where nothing else is said."""

    NONE = "none"
    # The device faults in a decode step: HTTP 500 without a token, /health not well any more.
    DEVICE_FAULT = "device-fault"
    # The same, and then the process ends with status 0, as if nothing had happened.
    EXIT_ZERO = "exit-zero"
    TRUNCATED_BODY = "truncated-body"
    HANG = "hang"
    CRASH = "crash"
    # /health is not well for the first seconds.
    SLOW_START = "slow-start"
    # No fault by itself: a child process owns the GPU, as vLLM's EngineCore does.
    WORKER_PROCESS = "worker-process"
