"""What an audit finds out, and the life of one token, as plain values."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

import polars as pl


class Rule(Enum):
    """What can be wrong with a KV write; docs/audit.md has the meaning of each.

    A write that breaks several rules is reported under the first of them in this order. The last
    rule holds ranks against each other, and is reported beside the others.
    """

    PADDING_ROW_WROTE = "padding-row-wrote"
    DUMMY_ROW_WROTE = "dummy-row-wrote"
    DRAFT_ROW_WROTE = "draft-row-wrote"
    OUTSIDE_KV = "outside-kv"
    WRONG_SLOT = "wrong-slot"
    NULL_BLOCK = "null-block"
    FREED_BLOCK = "freed-block"
    FOREIGN_BLOCK = "foreign-block"
    DUPLICATE_SLOT = "duplicate-slot"
    LAYERS_DISAGREE = "layers-disagree"
    MISSING_WRITE = "missing-write"
    READ_BEFORE_WRITE = "read-before-write"
    RANK_SLOTS = "rank-slots"


class AuditVerdict(Enum):
    """Whether the writes are as the scheduler assigned them."""

    CLEAN = "clean"
    FINDINGS = "findings"
    CANNOT_JUDGE = "cannot judge"


FINDING_SCHEMA: Final[dict[str, pl.DataType]] = {
    "rule": pl.Enum([rule.value for rule in Rule]),
    "process_id": pl.UInt32(),
    "context_index": pl.UInt16(),
    "step_stamp": pl.UInt32(),
    "step_kind": pl.String(),
    "layer_index": pl.UInt32(),
    "row": pl.UInt32(),
    "request_id": pl.String(),
    "position": pl.UInt32(),
    "kv_group": pl.UInt16(),
    "part": pl.String(),
    "expected_slot": pl.Int64(),
    "written_slot": pl.Int64(),
    "kv_block_id": pl.Int64(),
    "offset": pl.Int64(),
    "address": pl.UInt64(),
    "sequence": pl.UInt64(),
    "stores": pl.UInt32(),
    "held_by": pl.String(),
    "held_position": pl.Int64(),
    "in_null_block": pl.Boolean(),
    "other_process_id": pl.UInt32(),
}

# A row of a step, or a token that was taken from the prefix cache.
_ROW: Final = ("process_id", "step_stamp", "row", "request_id", "position")


@dataclass(frozen=True)
class Finding:
    """One KV write that should not be, or one that should be and is not; with its evidence.

    None stands for what does not apply or is not known. `kv_block_id` and `offset` (tokens) are
    those of the written slot; where nothing was written, of the expected one. `held_by` and
    `held_position` are the request and the token position that the written slot belongs to, and
    `in_null_block` says whether it is in the block that stands for none; of a token from the prefix
    cache they are what its slot was last written as. Where ranks part, `expected_slot` is what
    the rank `other_rank`, of process `other_process_id`, wrote.
    `sequence` is the first of `stores` store events of the write; `ranks` are the process's, and
    `rank` is their name, empty if there is one rank in all.
    """

    rule: Rule
    process_id: int
    rank: str
    ranks: Mapping[str, int]
    context_index: int | None
    step_stamp: int | None
    step_kind: str | None
    layer_index: int | None
    row: int | None
    request_id: str | None
    position: int | None
    kv_group: int | None
    part: str | None
    expected_slot: int | None
    written_slot: int | None
    kv_block_id: int | None
    offset: int | None
    address: int | None
    sequence: int | None
    stores: int
    held_by: str | None
    held_position: int | None
    in_null_block: bool | None
    other_process_id: int | None
    other_rank: str

    @property
    def text(self) -> str:
        """Say in one sentence what is wrong."""
        text = _NOTHING_WRITTEN if self._lacks_on_a_rank() else _TEXTS[self.rule]
        return text.format(
            who=self._who(),
            what=self.part or "a value",
            where=self._where(),
            holder=self._holder(),
            last=self._last_writer(),
            rank=self.rank,
            other=self.other_rank,
            slot=self.expected_slot,
        )

    def _lacks_on_a_rank(self) -> bool:
        return self.rule is Rule.RANK_SLOTS and self.written_slot is None

    def _who(self) -> str:
        if self.request_id is None:
            return f"row {_or(self.row)}"
        return f"token {_or(self.position)} of request {self.request_id}"

    def _where(self) -> str:
        slot = self.expected_slot if self.written_slot is None else self.written_slot
        if slot is None:
            return "no KV tensor" if self.layer_index is None else "an unknown slot"
        return f"slot {slot}"

    def _last_writer(self) -> str:
        if self.held_by is None:
            return "was never written"
        return f"was last written as token {_or(self.held_position)} of request {self.held_by}"

    def _holder(self) -> str:
        if self.in_null_block:
            return "which is in the null block"
        if self.held_by is None:
            known = self.written_slot is not None
            return "which no request holds" if known else f"address {self.address or 0:#x}"
        if self.held_by == self.request_id:
            return f"which is its own token {_or(self.held_position)}"
        return f"which is token {_or(self.held_position)} of request {self.held_by}"


_TEXTS: Final = {
    Rule.PADDING_ROW_WROTE: "padding {who} wrote {what} to {where}, {holder}",
    Rule.DUMMY_ROW_WROTE: "{who} of a dummy step wrote {what} to {where}, {holder}",
    Rule.DRAFT_ROW_WROTE: "{who} of a draft step wrote {what} to {where}, {holder}",
    Rule.OUTSIDE_KV: "{who} wrote outside every KV tensor",
    Rule.WRONG_SLOT: "{who} wrote {what} to {where}, {holder}",
    Rule.NULL_BLOCK: "{who} wrote {what} to {where}, {holder}",
    Rule.DUPLICATE_SLOT: "{who} wrote {what} to {where}, as another row of the step did",
    Rule.FREED_BLOCK: "{who} wrote {what} to {where}, {holder}",
    Rule.FOREIGN_BLOCK: "{who} wrote {what} to {where}, {holder}",
    Rule.LAYERS_DISAGREE: "{who} wrote {what} to {where}, other layers to another slot",
    Rule.MISSING_WRITE: "{who} did not write {what} to {where}",
    Rule.READ_BEFORE_WRITE: "{who} was taken as computed, but {where} {last}",
    Rule.RANK_SLOTS: "{rank}: {who} wrote {what} to {where}; on {other} to slot {slot}",
}
_NOTHING_WRITTEN: Final = "{rank}: {who} did not write {what}; on {other} it did, to {where}"


def _or(value: int | None) -> str:
    return "?" if value is None else str(value)


@dataclass(frozen=True)
class RuleCount:
    """How many findings a rule has, and over how many rows, layers, steps and requests."""

    rule: Rule
    findings: int
    rows: int
    layers: int
    steps: int
    requests: int


@dataclass(frozen=True)
class RowCount:
    """Rows of one owner: how many the steps ran, and how many KV writes they did.

    `rows` is None where the steps do not tell. A write is what one row stores of one part in one
    layer, however many stores it takes.
    """

    owner: str
    rows: int | None
    writes: int
    stores: int


@dataclass(frozen=True)
class Judged:
    """What the audit looked at, so that no finding can be weighed: of how many.

    `ownerless_stores` belong to no recorded step; `other_outputs` are stores of instructions that
    never write a KV tensor. `compared_ranks` of the processes were held against each other.
    """

    processes: int
    requests: int
    forward_steps: int
    dummy_steps: int
    draft_steps: int
    layers: int
    expected_writes: int
    owners: tuple[RowCount, ...]
    ownerless_stores: int
    other_outputs: int
    compared_ranks: int


@dataclass(frozen=True)
class Audit:
    """Everything that `kvtrace audit` concludes; `findings` has the columns of FINDING_SCHEMA."""

    verdict: AuditVerdict
    doubts: tuple[str, ...]
    notes: tuple[str, ...]
    emulated: bool
    judged: Judged
    rules: tuple[RuleCount, ...]
    ranks: Mapping[int, Mapping[str, int]]
    rank_names: Mapping[int, str]
    findings: pl.DataFrame = field(compare=False, repr=False)

    def each(self) -> Iterator[Finding]:
        """Yield the findings in the order of steps."""
        return self._each(self.findings)

    def samples(self, rule: Rule, limit: int) -> tuple[Finding, ...]:
        """Return the first finding of each row that breaks a rule, of the first `limit` rows."""
        broken = self.findings.filter(rule=rule.value)
        rows = broken.unique(_ROW, keep="first", maintain_order=True)
        return tuple(self._each(rows.head(limit)))

    def _each(self, findings: pl.DataFrame) -> Iterator[Finding]:
        for values in findings.iter_rows(named=True):
            rule = Rule(values.pop("rule"))
            process_id, other = values["process_id"], values["other_process_id"]
            yield Finding(
                rule=rule,
                rank=self.rank_names.get(process_id, ""),
                ranks=self.ranks.get(process_id, {}),
                other_rank=self.rank_names.get(other, ""),
                **values,
            )


@dataclass(frozen=True)
class LayerWrite:
    """What one layer did for a token in one step.

    `entered_us` is counted from the first of the token's layers, GPU globaltimer. `problems` is
    empty if all is well; addresses and slots are None if there was no store, or none recorded.
    """

    layer_index: int | None
    launch: str
    entered_us: float | None
    addresses: Mapping[str, int]
    written_slots: tuple[int, ...]
    problems: tuple[str, ...]


@dataclass(frozen=True)
class TokenPass:
    """One step that computed the token: what ran, and what each layer wrote.

    `expected_slot` is None if the request's table had no KV block for it. `end` says what became
    of the slot. A token has several passes if its request was preempted.
    """

    process_id: int
    rank: str
    ranks: Mapping[str, int]
    step_stamp: int
    step_kind: str
    graph_mode: str | None
    rows: int | None
    padded_rows: int | None
    row: int
    kv_group: int
    launched: str
    expected_slot: int | None
    kv_block_id: int | None
    offset: int | None
    layers: tuple[LayerWrite, ...]
    end: str


@dataclass(frozen=True)
class TokenLife:
    """What became of one token of one request."""

    request_id: str
    position: int
    emulated: bool
    stores_recorded: bool
    passes: tuple[TokenPass, ...]
    notes: tuple[str, ...]
