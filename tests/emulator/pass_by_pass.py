"""The emulated engine's core without threads, HTTP or native code: what every pass stored where."""

import json
from dataclasses import dataclass, field

import pytest

from kvtrace_cli.emulator.engine_core import EngineCore
from kvtrace_cli.emulator.faults import Fault
from kvtrace_cli.emulator.kv_blocks import KvBlockManager
from kvtrace_cli.emulator.kv_cache import KvCache
from kvtrace_cli.emulator.model_runner import ModelRunner
from kvtrace_cli.emulator.request import Request
from kvtrace_cli.emulator.scheduler import Scheduler
from kvtrace_cli.emulator.slot_faults import slot_mapper
from kvtrace_cli.emulator.step_log import StepLog

LAYERS = 3
VOCABULARY = 1000
_MOST_PASSES = 5000


def make_cache(num_blocks=64, block_size=4, layers=LAYERS):
    return KvCache(
        layers=layers,
        kv_heads=2,
        head_dim=8,
        dtype="bfloat16",
        element_size=2,
        num_blocks=num_blocks,
        block_size=block_size,
    )


class SlotDriver:
    """Stands in for the driver; keeps the slots that each layer's rows get, pass by pass."""

    def __init__(self):
        self.passes = []
        self._now = []
        self._capturing = None

    def load_module(self, names):
        return {name: name for name in names}

    def create_slots(self, capacity):
        return [-1] * capacity

    def set_slots(self, slots, kv_slots):
        slots[:] = [*kv_slots, *[-1] * (len(slots) - len(kv_slots))]

    def launch(self, _function, blocks, writes=None):
        if writes is not None:
            to = self._now if self._capturing is None else self._capturing
            to.append((writes, blocks))

    def begin_capture(self):
        self._capturing = []

    def end_capture(self):
        captured, self._capturing = self._capturing, None
        return captured

    def replay(self, graph_exec):
        self._now += graph_exec

    def synchronize(self):
        self.passes.append([writes.slots.handle[:blocks] for writes, blocks in self._now])
        self._now = []


@dataclass
class Engine:
    """A core whose steps the test takes; `stored[k][layer]` has the slots of pass k's rows."""

    directory: object
    cache: KvCache = field(default_factory=make_cache)
    prefix_caching: bool = False
    fault: Fault = Fault.NONE
    capture_sizes: tuple = (1, 2, 4, 8)
    max_num_seqs: int = 4
    max_batched_tokens: int = 16

    def __post_init__(self):
        self.directory.mkdir(exist_ok=True)
        self._driver = SlotDriver()
        mapper = slot_mapper(self.fault, self.cache)
        runner = ModelRunner(
            self._driver,
            self.cache,
            capture_sizes=self.capture_sizes,
            max_batched_tokens=self.max_batched_tokens,
            mapper=mapper,
            steps=StepLog({"KVTRACE_STEPS": str(self.directory)}, self.cache),
        )
        runner.warm_up()
        self.blocks = KvBlockManager(
            self.cache.num_blocks, self.cache.block_size, prefix_caching=self.prefix_caching
        )
        self.scheduler = Scheduler(
            self.blocks,
            max_num_seqs=self.max_num_seqs,
            max_batched_tokens=self.max_batched_tokens,
            choose_shared=mapper.choose_shared,
        )
        self.core = EngineCore(runner, self.scheduler)
        self.requests = []

    @property
    def stored(self):
        return self._driver.passes

    def submit(self, prompt, max_tokens):
        request = Request(f"cmpl-{len(self.requests)}", tuple(prompt), max_tokens, VOCABULARY)
        self.requests.append(request)
        self.core.submit(request)
        return request

    def step(self):
        self.core.step()

    def finish(self):
        for _ in range(_MOST_PASSES):
            if not self.scheduler.has_work:
                return
            self.step()
        pytest.fail(f"not finished after {_MOST_PASSES} passes")

    def lines(self):
        (path,) = self.directory.glob("*.steps.jsonl")
        return [json.loads(line) for line in path.read_text().splitlines()]

    def told(self):
        """Replay the steps file as docs/format.md says, with what each pass stored beside it.

        Yields (line, expected slots of the request rows, tables after the line, stored).
        """
        tables = {}
        # A captured pass runs nothing.
        passes = iter(self.stored)
        for line in self.lines():
            if line["event"] == "started":
                continue
            for request_id in (*line.get("finished", ()), *line.get("preempted", ())):
                del tables[request_id]
            for request_id, _, (kv_block_ids,) in (
                *line.get("admitted", ()),
                *line.get("resumed", ()),
            ):
                assert request_id not in tables
                tables[request_id] = list(kv_block_ids)
            for request_id, (kv_block_ids,) in line.get("grown", ()):
                tables[request_id] += kv_block_ids
            is_captured = line.get("kind") == "dummy" and line["graph_mode"] == "FULL"
            runs = line["event"] == "step" and not is_captured
            yield line, self._expected(line, tables), tables, next(passes) if runs else []
        assert next(passes, None) is None

    def _expected(self, line, tables):
        size = self.cache.block_size
        return [
            tables[request_id][position // size] * size + position % size
            for request_id, rows, first in line.get("requests", ())
            for position in range(first, first + rows)
        ]
