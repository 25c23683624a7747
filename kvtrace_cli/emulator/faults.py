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
    # Wrong KV slots, see slot_faults.py: rows of a pass without a request write slot 0.
    DUMMY_SLOT_ZERO = "dummy-slot-zero"
    # Padding rows after a prompt's chunk write the slots of the pass before.
    STALE_PADDING_SLOTS = "stale-padding-slots"
    # Padding rows write the last slot of the cache.
    PADDING_LAST_SLOT = "padding-last-slot"
    # A new request gets a block that a running one writes; it needs two requests at once.
    FREED_BLOCK_REUSED = "freed-block-reused"
    # Slots are computed with twice the block size.
    BLOCK_SIZE_MIXUP = "block-size-mixup"
    # One layer writes nothing in one decode pass.
    SKIPPED_LAYER = "skipped-layer"
    # One layer writes each row one slot further.
    SHIFTED_LAYER = "shifted-layer"
    # All layers write each row one slot further.
    SHIFTED_SLOTS = "shifted-slots"
    # One layer's kernel is not launched in passes with a prompt.
    UNLAUNCHED_LAYER = "unlaunched-layer"
    # The process of a rank is killed.
    RANK_DIES = "rank-dies"
    # The injector is not loaded into the process of a rank.
    NOT_ATTACHED = "not-attached"
