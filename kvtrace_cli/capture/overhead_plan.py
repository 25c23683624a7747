"""What `kvtrace overhead` is to do: arms, starts, rounds, and the requests of a round."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from kvtrace_cli.capture.overhead_arms import CLEAN, DEFAULT_ARMS
from kvtrace_cli.config import (
    GIB,
    SAFE_TOKEN_IDS,
    EngineConfig,
    RequestPlan,
    RequestSpec,
    Role,
    RunConfig,
    TimeLimits,
    Weights,
)
from kvtrace_cli.errors import ConfigError

PROMPT_TOKENS: Final = 8
# At batch 1 so many requests follow one another; of larger batches one is asked.
ALONE_REQUESTS: Final = 5
PREFILLS: Final = 3
# Sequences hold whole KV blocks, and a server that has to wait for some would be another server.
_KV_SLACK: Final = 1.25
# With fewer there is no middle gap.
_FEWEST_TOKENS: Final = 3


@dataclass(frozen=True)
class OverheadPlan:
    """One measurement, all of it but the machine."""

    model: str
    weights: Weights = Weights.DUMMY
    arms: tuple[str, ...] = DEFAULT_ARMS
    starts: int = 3
    rounds: int = 6
    batches: tuple[int, ...] = (1, 8, 64)
    tokens: int = 128
    prefill: int = 4096
    seed: int = 1
    # Servers on the card at once; null: as many as fit.
    side_by_side: int | None = None
    out: Path | None = None
    engine: EngineConfig = field(default_factory=EngineConfig)
    limits: TimeLimits = field(default_factory=TimeLimits)

    def __post_init__(self) -> None:
        for option, found, least in (
            ("--starts", self.starts, 1),
            ("--rounds", self.rounds, 1),
            ("--tokens", self.tokens, _FEWEST_TOKENS),
            ("--prefill", self.prefill, 2),
            ("--seed", self.seed, 0),
        ):
            _at_least(option, found, least)
        if self.side_by_side is not None:
            _at_least("--side-by-side", self.side_by_side, 1)
        if not self.batches or min(self.batches) < 1 or len({*self.batches}) < len(self.batches):
            raise ConfigError(
                f"--batch: found {','.join(map(str, self.batches)) or 'nothing'}, "
                "expected different positive numbers such as 1,8,64"
            )

    def run_config(self, kv_token_bytes: int | None, share: float | None) -> RunConfig:
        """Return how each server is started, whatever its arm.

        Args:
            kv_token_bytes: bytes of the KV cache for a token, to take no more than is needed;
                null: not known, the usual size.
            share: of the card's memory that must be free when it starts; null: the engine's own.
        """
        largest = max(self.batches)
        sizes = {*self.batches, *(1 << power for power in range(largest.bit_length()))}
        shapes = tuple(
            RequestSpec(Role.MEASURED, (SAFE_TOKEN_IDS[0],) * prompt, tokens)
            for prompt, tokens in ((PROMPT_TOKENS, self.tokens), (self.prefill, 1))
        )
        memory = () if share is None else ("--gpu-memory-utilization", f"{share:.2f}")
        engine = replace(
            self.engine,
            max_num_seqs=largest,
            # A prefill is one step, and a batch starts in one.
            max_num_batched_tokens=max(
                EngineConfig.max_num_batched_tokens, self.prefill, largest * PROMPT_TOKENS
            ),
            capture_sizes=tuple(sorted(sizes)),
            arguments=(*memory, *self.engine.arguments),
        )
        config = RunConfig(
            self.model,
            self.weights,
            out=self.out,
            requests=RequestPlan(listed=shapes),
            engine=engine,
            limits=self.limits,
        )
        if kv_token_bytes is None:
            return config
        tokens = max(largest * (PROMPT_TOKENS + self.tokens), config.max_model_len)
        wanted = -(-int(tokens * kv_token_bytes * _KV_SLACK) // GIB) * GIB
        return replace(config, engine=replace(engine, kv_cache_memory_bytes=wanted))

    def groups(self, names: Sequence[str], start: int, at_once: int) -> list[list[str]]:
        """Return which arms' servers run together in a start, in an order drawn for it.

        If not all fit, each group has a clean server of its own, unless only one fits.
        """
        chance = random.Random(f"groups {self.seed} {start}")  # noqa: S311  an order, no secret
        if at_once == 1 or at_once >= len(names):
            drawn = chance.sample(names, len(names))
            return [drawn[i : i + at_once] for i in range(0, len(drawn), at_once)]
        others = chance.sample([name for name in names if name != CLEAN], len(names) - 1)
        step = at_once - 1
        return [[CLEAN, *others[i : i + step]] for i in range(0, len(others), step)]

    def order(self, group: Sequence[str], start: int, number: int) -> list[str]:
        """Return the order in which a round, from 1, asks the servers.

        Every second round is the one before in reverse, so over two rounds all arms are asked at
        the same mean place; over twice as many rounds as arms each is at each place twice.
        """
        chance = random.Random(f"order {self.seed} {start}")  # noqa: S311  an order, no secret
        base = chance.sample(group, len(group))
        turn = (number - 1) // 2 % len(base)
        turned = base[turn:] + base[:turn]
        return turned[::-1] if number % 2 == 0 else turned

    def decode(self, what: str, count: int) -> Iterator[RequestSpec]:
        """Yield requests for inter-token times; `what` is their seed, the same for all arms."""
        for index in range(count):
            yield self._spec(f"{what} {index}", PROMPT_TOKENS, self.tokens)

    def prefills(self, what: str, count: int) -> Iterator[RequestSpec]:
        """Yield long prompts, each another, of which one token is asked."""
        for index in range(count):
            yield self._spec(f"{what} prefill {index}", self.prefill, 1)

    def _spec(self, what: str, prompt_tokens: int, max_tokens: int) -> RequestSpec:
        chance = random.Random(f"prompt {self.seed} {what}")  # noqa: S311  token ids, no secret
        prompt = tuple(chance.choices(SAFE_TOKEN_IDS, k=prompt_tokens))
        return RequestSpec(Role.MEASURED, prompt, max_tokens, stream=True)


def _at_least(option: str, found: int, least: int) -> None:
    if found < least:
        raise ConfigError(f"{option}: found {found}, expected {least} or more")
