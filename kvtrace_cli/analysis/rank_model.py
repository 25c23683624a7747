"""What comparing the ranks of a run finds out, as plain values."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any


@dataclass(frozen=True)
class Rank:
    """One place in an engine, and the process that took it; None: no process did.

    `number` counts all ranks from 0: those of data rank 0 first, of one pipeline rank in a row.
    `name` has the dimensions that are larger than one, `TP1 PP0`; empty if there is one rank.
    `host` is where the process ran, and `host_clock` stands for its CLOCK_MONOTONIC; None if not
    told.
    """

    process_id: int | None
    name: str
    tensor: int
    pipeline: int
    data: int
    number: int
    host: str | None = None
    host_clock: str | None = None

    @property
    def place(self) -> tuple[int, int, int]:
        """Data, pipeline and tensor rank: the order of ranks."""
        return self.data, self.pipeline, self.tensor

    @property
    def title(self) -> str:
        """The process with its name."""
        if self.process_id is None:
            return self.name
        return process_title(self.process_id, {self.process_id: self.name})


class RankRule(Enum):
    """What parallelism promises of a run's ranks; docs/ranks.md has the meaning of each."""

    STEPS = "rank-steps"
    KV_BLOCKS = "rank-kv-blocks"
    ROWS = "rank-rows"
    LAYERS = "rank-layers"
    REQUESTS = "rank-requests"
    IDLE = "rank-idle"


@dataclass(frozen=True)
class RankDifference:
    """The first place where a rank is not as another one says it should be.

    `rank` is the one that parts, and `other` the one that it is held against; both are names.
    `text` is one sentence. None stands for what does not apply.
    """

    rule: RankRule
    rank: str
    other: str
    text: str
    step_stamp: int | None = None
    layer_index: int | None = None
    row: int | None = None
    request_id: str | None = None
    position: int | None = None


@dataclass(frozen=True)
class RankAccount:
    """What one rank recorded, and what is wrong with it or cannot be known of it.

    `unexpected_blocks` entered for no recorded launch; `dropped` counts records of all its files.
    `steps` counts the engine's steps by kind. `faults` and `doubts` are plain sentences;
    `has_file_faults`: records were dropped or are missing, or the books do not balance.
    """

    rank: Rank
    launches: int = 0
    expected_blocks: int = 0
    matched_blocks: int = 0
    unexpected_blocks: int = 0
    stores: int = 0
    dropped: int = 0
    steps: Mapping[str, int] = field(default_factory=dict)
    has_file_faults: bool = False
    faults: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()


@dataclass(frozen=True)
class RankBooks:
    """The ranks of a run: each one's account, and how they stand to each other.

    Everything is empty in a run of one rank but `names`, `checks` and the accounts. `names` is of
    each process that has one. `checks` are the rules that could be looked at.
    """

    accounts: tuple[RankAccount, ...] = ()
    differences: tuple[RankDifference, ...] = ()
    checks: tuple[RankRule, ...] = ()
    doubts: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    names: Mapping[int, str] = field(default_factory=dict)

    @property
    def are_several(self) -> bool:
        """Say whether there is more than one rank, present or not: then they have names."""
        return any(account.rank.name for account in self.accounts)


def process_title(process_id: int, names: Mapping[int, str]) -> str:
    """Return a process with its rank's name, if `names` has one: `process 4711 (TP1)`."""
    name = names.get(process_id)
    return f"process {process_id} ({name})" if name else f"process {process_id}"


def rank_document(rank: Rank) -> dict[str, Any]:
    """Return a rank as JSON has it, its process first."""
    return {
        "process_id": rank.process_id,
        "name": rank.name,
        "tensor": rank.tensor,
        "pipeline": rank.pipeline,
        "data": rank.data,
        "number": rank.number,
        "host": rank.host,
    }
