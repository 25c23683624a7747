"""Model runners of the shape of vLLM's two, for the engine plug-in.

They launch, and note each launch as (what, stamp that the injector had then). Only what the
plug-in's hooks touch is here, called in the order of vLLM 0.26.
"""

# ruff: noqa: ARG002  the signatures are the engine's

from enum import Enum
from math import prod
from types import ModuleType, SimpleNamespace

Mode = Enum("Mode", "NONE PIECEWISE FULL")
BLOCK_SIZE = 16


class Array(list):
    """Host numbers, as numpy has them."""

    def __getitem__(self, index):
        found = super().__getitem__(index)
        return Array(found) if isinstance(index, slice) else found

    def tolist(self):
        return list(self)


class Tensor:
    """A KV tensor as far as the plug-in may look: reading it would wait for the GPU."""

    dtype = "torch.bfloat16"

    def __init__(self, shape, address=0x7F0000000000, element_size=2):
        self.shape = tuple(shape)
        self._address, self._element_size = address, element_size

    def data_ptr(self):
        return self._address

    def stride(self):
        return tuple(prod(self.shape[axis + 1 :]) for axis in range(len(self.shape)))

    def numel(self):
        return prod(self.shape)

    def element_size(self):
        return self._element_size


class FullAttentionSpec:
    block_size, num_kv_heads, head_size = BLOCK_SIZE, 8, 128


class Backend:
    """FlashAttention of vLLM 0.26."""

    @staticmethod
    def get_name():
        return "FLASH_ATTN"

    @staticmethod
    def get_kv_cache_shape(num_blocks, block_size, num_kv_heads, head_size, cache_dtype_str="auto"):
        assert cache_dtype_str == "auto"
        if block_size % 16:
            raise ValueError("Block size must be a multiple of 16.")
        return (num_blocks, num_kv_heads, block_size, 2 * head_size)


def layer(tensor, backend=Backend, **impl):
    return SimpleNamespace(
        kv_cache=tensor, get_attn_backend=lambda: backend, impl=SimpleNamespace(**impl)
    )


def group(*layer_names, spec=None):
    return SimpleNamespace(layer_names=list(layer_names), kv_cache_spec=spec or FullAttentionSpec())


def cache_config(*groups, num_blocks=100):
    return SimpleNamespace(num_blocks=num_blocks, kv_cache_groups=list(groups))


def scheduler_output(scheduled=(), *, new=(), cached=(), finished=(), preempted=()):
    """One output.

    Args:
        scheduled: (request id, rows) of each request.
        new: (request id, KV blocks, computed tokens).
        cached: (request id, new KV blocks or None, computed tokens).
        finished: request ids.
        preempted: request ids.
    """
    return SimpleNamespace(
        num_scheduled_tokens=dict(scheduled),
        total_num_scheduled_tokens=sum(rows for _, rows in scheduled),
        finished_req_ids=set(finished),
        preempted_req_ids=set(preempted),
        kv_cache_block_copies=None,
        scheduled_new_reqs=[
            SimpleNamespace(req_id=one[0], block_ids=(one[1],), num_computed_tokens=one[2])
            for one in new
        ],
        scheduled_cached_reqs=SimpleNamespace(
            req_ids=[one[0] for one in cached],
            new_block_ids=[None if one[1] is None else (one[1],) for one in cached],
            num_computed_tokens=[one[2] for one in cached],
            resumed_req_ids=set(),
        ),
    )


class _Runner:
    """What both have."""

    speculative = False
    async_scheduling = True

    def __init__(self, current):
        self._current = current
        self.launches = []
        self.positions = {}
        self.execute_model_state = None
        self.cache_config = SimpleNamespace(cache_dtype="auto")
        self.parallel_config = SimpleNamespace(rank=3, data_parallel_rank=1)
        self.vllm_config = SimpleNamespace(
            speculative_config=object() if self.speculative else None,
            scheduler_config=SimpleNamespace(async_scheduling=self.async_scheduling),
        )
        tensor = Tensor((100, 8, 16, 256))
        self.compilation_config = SimpleNamespace(
            static_forward_context={"model.layers.0.attn": layer(tensor)}
        )

    def launch(self, what):
        self.launches.append((what, self._current[-1]))

    def initialize_kv_cache(self, kv_cache_config=None, is_profiling=False):
        self.kv_cache_config = kv_cache_config or cache_config(group("model.layers.0.attn"))
        return "initialised"

    def profile_run(self):
        self._dummy_run(64)
        self.launch("sampler")

    def capture_model(self):
        for rows in (8, 4):
            self._dummy_run(rows)
            self.launch(f"capture {rows}")
        return 123

    def _note(self, output):
        for one in output.scheduled_new_reqs:
            self.positions[one.req_id] = one.num_computed_tokens
        cached = output.scheduled_cached_reqs
        self.positions.update(zip(cached.req_ids, cached.num_computed_tokens, strict=True))

    def _padded(self, rows):
        return next((size for size in (1, 2, 4, 8) if size >= rows), rows)

    def _arrays(self, output):
        counts = [output.num_scheduled_tokens[one] for one in self._order(output)]
        positions = [self.positions[one] for one in self._order(output)]
        return Array(counts), Array(positions)


class V1Runner(_Runner):
    """`vllm.v1.worker.gpu_model_runner.GPUModelRunner`."""

    drafter = None

    def _order(self, output):
        return list(output.num_scheduled_tokens)

    def execute_model(self, scheduler_output, intermediate_tensors=None):
        self._note(scheduler_output)
        if not scheduler_output.total_num_scheduled_tokens:
            return "empty"
        counts = self.fill_batch(scheduler_output)
        self._prepare_inputs(scheduler_output, counts)
        _mode, descriptor, *_ = self._determine_batch_execution_and_padding(
            num_tokens=sum(counts), num_reqs=len(counts)
        )
        self._get_slot_mappings(num_tokens_padded=descriptor.num_tokens, num_reqs_padded=1)
        self.launch("forward")
        self.execute_model_state = object()
        return None

    def fill_batch(self, scheduler_output):
        counts, positions = self._arrays(scheduler_output)
        self.input_batch = SimpleNamespace(
            req_ids=self._order(scheduler_output),
            num_computed_tokens_cpu=Array([*positions, 77, 77]),  # longer than the batch
        )
        return counts

    def _prepare_inputs(self, scheduler_output, num_scheduled_tokens):
        self.launch("copy")
        return "logits indices", None

    def _determine_batch_execution_and_padding(self, num_tokens, num_reqs):
        return Mode.FULL, SimpleNamespace(num_tokens=self._padded(num_tokens)), False, None

    def _get_slot_mappings(self, num_tokens_padded, num_reqs_padded):
        return {}, {}

    def _dummy_run(self, num_tokens, uniform_decode=False):
        self._determine_batch_execution_and_padding(num_tokens=num_tokens, num_reqs=1)
        self._get_slot_mappings(num_tokens_padded=num_tokens, num_reqs_padded=1)
        self.launch(f"dummy {num_tokens}")

    def sample_tokens(self, grammar_output):
        if self.drafter is not None and self.execute_model_state is not None:
            self.launch("draft")
        self.execute_model_state = None
        return "sampled"


class V2Runner(_Runner):
    """`vllm.v1.worker.gpu.model_runner.GPUModelRunner`."""

    speculator = None
    has_positions = True

    def _order(self, output):
        counts = output.num_scheduled_tokens
        return sorted(counts, key=lambda one: (counts[one] != 1, counts[one]))

    def execute_model(self, scheduler_output, intermediate_tensors=None, dummy_run=False):
        rows = scheduler_output.total_num_scheduled_tokens
        if dummy_run:
            self.launch(f"dummy {rows}")
            return None
        self._note(scheduler_output)
        if not rows:
            return "empty"
        descriptor = SimpleNamespace(cg_mode=Mode.PIECEWISE, num_tokens=self._padded(rows))
        self.prepare_inputs(scheduler_output, descriptor)
        self.launch("forward")
        self.execute_model_state = object()
        return None

    def prepare_inputs(self, scheduler_output, batch_desc):
        return self.make_batch(scheduler_output, batch_desc)

    def make_batch(self, scheduler_output, batch_desc):
        counts, positions = self._arrays(scheduler_output)
        batch = SimpleNamespace(
            req_ids=self._order(scheduler_output),
            num_scheduled_tokens=counts,
            num_tokens=sum(counts),
            num_tokens_after_padding=batch_desc.num_tokens,
        )
        if self.has_positions:
            batch.num_computed_tokens_np = positions
        return batch

    def _dummy_run(self, num_tokens, *args, **kwargs):
        output = SimpleNamespace(total_num_scheduled_tokens=num_tokens)
        self.execute_model(output, dummy_run=True)
        if self.speculator is not None:
            self.launch("propose")

    def sample_tokens(self, grammar_output):
        if self.speculator is not None and self.execute_model_state is not None:
            self.launch("draft")
        self.execute_model_state = None
        return "sampled"


def fresh_class(runner_class, **attributes):
    """Return a copy of a runner class, to be hooked; a None takes a method away."""
    copied = {**vars(runner_class), **attributes}
    for name in ("__dict__", "__weakref__"):
        copied.pop(name, None)  # the new class has its own
    present = {name: value for name, value in copied.items() if value is not None}
    kept = {name: None for name in ("drafter", "speculator") if name in vars(runner_class)}
    return type("GPUModelRunner", runner_class.__bases__, {**kept, **present})


def as_module(runner_class):
    module = ModuleType("fake")
    module.GPUModelRunner = runner_class
    return module
