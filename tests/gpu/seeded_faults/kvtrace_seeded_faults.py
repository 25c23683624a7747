"""Bugs of published vLLM reports, put into a running engine so that `kvtrace audit` can find them.

A test-only plug-in: with this directory on PYTHONPATH and KVTRACE_TEST_FAULT set to one of FAULTS,
the engine misbehaves in one way for requests whose id holds `kvtrace-` (dummy-slot-zero: in every
dummy pass; rank-shift: in one tensor rank, each row one slot further). For vLLM 0.26's V2 model
runner.
"""

import os
from importlib import import_module

FAULTS = (
    "dummy-slot-zero",
    "stale-padding-slots",
    "padding-last-slot",
    "freed-block-reused",
    "block-size-mixup",
    "rank-shift",
)
# The tensor rank that has the fault `rank-shift`.
SHIFTED_RANK = 1


def register():
    """Patch the engine with the fault that the environment names; called by vLLM."""
    fault = os.environ.get("KVTRACE_TEST_FAULT", "")
    if not fault:
        return
    if fault not in FAULTS:
        raise ValueError(f"KVTRACE_TEST_FAULT: found {fault!r}, expected one of {FAULTS}")
    if fault == "dummy-slot-zero":
        _fill_dummy_slots_with_zero()
    elif fault == "freed-block-reused":
        _give_away_a_block_in_use()
    else:
        _change_slots(fault)


def _fill_dummy_slots_with_zero():
    tables_class = import_module("vllm.v1.worker.gpu.block_table").BlockTables
    original = tables_class.get_dummy_slot_mappings

    def get_dummy_slot_mappings(self, num_tokens):
        slots = original(self, num_tokens)
        self.slot_mappings.fill_(0)
        return slots

    tables_class.get_dummy_slot_mappings = get_dummy_slot_mappings


def _change_slots(fault):
    """Change what the slot mapping kernel wrote, on the GPU, before the model runs."""
    runner_class = import_module("vllm.v1.worker.gpu.model_runner").GPUModelRunner
    original = runner_class.prepare_attn

    def prepare_attn(self, input_batch):
        if not any("kvtrace-" in request for request in input_batch.req_ids):
            return original(self, input_batch)
        tables = self.block_tables
        rows, padded = input_batch.num_tokens, input_batch.num_tokens_after_padding
        before = tables.slot_mappings.clone()
        block_sizes = tables.block_sizes_tensor
        if fault == "block-size-mixup":
            tables.block_sizes_tensor = block_sizes * 2
        try:
            result = original(self, input_batch)
        finally:
            tables.block_sizes_tensor = block_sizes
        if fault == "stale-padding-slots":
            tables.slot_mappings[:, rows:padded] = before[:, rows:padded]
        elif fault == "padding-last-slot":
            last = self.kv_cache_config.num_blocks * tables.block_sizes[0] - 1
            tables.slot_mappings[:, rows:padded] = last
        elif fault == "rank-shift" and _tensor_rank() == SHIFTED_RANK:
            tables.slot_mappings[:, :rows] += 1
        return result

    runner_class.prepare_attn = prepare_attn


def _tensor_rank():
    return import_module("vllm.distributed.parallel_state").get_tp_group().rank_in_group


def _give_away_a_block_in_use():
    """Give the first new request, once, the block that a running request writes just now."""
    scheduler_class = import_module("vllm.v1.core.sched.scheduler").Scheduler
    original = scheduler_class.schedule
    done = []

    def schedule(self, *args, **kwargs):
        output = original(self, *args, **kwargs)
        new = {request.req_id for request in output.scheduled_new_reqs}
        running = [request for request in self.running if request.request_id not in new]
        for request in output.scheduled_new_reqs:
            if done or not running or "kvtrace-" not in request.req_id:
                continue
            victim = running[0]
            block_size = self.vllm_config.cache_config.block_size
            held = self.kv_cache_manager.get_block_ids(victim.request_id)[0]
            in_use = held[min(victim.num_computed_tokens // block_size, len(held) - 1)]
            first, *others = request.block_ids
            request.block_ids = ([in_use, *first[1:]], *others)
            done.append(victim.request_id)
        return output

    scheduler_class.schedule = schedule
