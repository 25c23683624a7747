"""The patched launches of one context as plain columns, which its entries are held against."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import polars as pl

from kvtrace_cli.analysis.entry_runs import Runs
from kvtrace_cli.dumps.event_source import I64, U32, Bools, EventPiece
from kvtrace_cli.dumps.schema import LAUNCH_INDEX

# All that joining looks at, of the many columns of launches.
JOINED_COLUMNS = (
    LAUNCH_INDEX,
    "grid_id",
    "join_stamp",
    "grid_dim_x",
    "grid_dim_y",
    "grid_dim_z",
    "expected_blocks",
    "kernel_slot",
)


@dataclass(frozen=True)
class BlockNumbers:
    """Numbers of the blocks that entered; `in_grid` says of which entries, None: of all."""

    numbers: I64
    in_grid: Bools | None


class ContextLaunches:
    """Launches in publish order; their rows are what `Runs` name."""

    def __init__(self, launches: pl.DataFrame) -> None:
        """Take the launches of one context with `is_patched`, `JOINED_COLUMNS`."""
        self.launch_index: U32 = launches[LAUNCH_INDEX].to_numpy()
        self.kernel_slot: U32 = launches["kernel_slot"].to_numpy()
        self.grid_id = launches["grid_id"].to_numpy()
        self.stamp = launches["join_stamp"].to_numpy()
        # Blocks are numbered through all launches.
        self.first_block: I64 = np.zeros(launches.height + 1, np.int64)
        np.cumsum(launches["expected_blocks"].to_numpy().astype(np.int64), out=self.first_block[1:])
        self._dims = tuple(launches[f"grid_dim_{axis}"].to_numpy() for axis in "xyz")

    def __len__(self) -> int:
        return len(self.launch_index)

    @property
    def blocks(self) -> int:
        """How many blocks all launches have."""
        return int(self.first_block[-1])

    @cached_property
    def expected(self) -> I64:
        """How many blocks each launch has."""
        return np.diff(self.first_block)

    def block_numbers(self, entries: EventPiece, runs: Runs) -> BlockNumbers:
        """Number the blocks that entered, of those that their launch has."""
        if not len(self) or not runs.count:
            return BlockNumbers(np.empty(0, np.int64), np.zeros(runs.count, np.bool_))
        index = [entries.column(f"block_idx_{axis}") for axis in "xyz"]
        dims = [dim[runs.rows] for dim in self._dims]
        inside = runs.rows >= 0
        for at, dim in zip(index, dims, strict=True):
            inside &= np.maximum.reduceat(at, runs.starts) < dim
        is_all = bool(inside.all())
        in_grid = None if is_all else self._in_grid(index, dims, runs)
        numbers = self._numbers(index, dims, runs)
        return BlockNumbers(numbers if in_grid is None else numbers[in_grid], in_grid)

    def _in_grid(self, index: list[np.ndarray], dims: list[np.ndarray], runs: Runs) -> Bools:
        in_grid = runs.spread(runs.rows) >= 0
        for at, dim in zip(index, dims, strict=True):
            in_grid &= at < runs.spread(dim)
        return np.asarray(in_grid, np.bool_)

    def _numbers(self, index: list[np.ndarray], dims: list[np.ndarray], runs: Runs) -> I64:
        x, y, z = index
        numbers: I64 = runs.spread(self.first_block[runs.rows]) + x
        if y.any() or z.any():
            across = runs.spread(dims[1].astype(np.int64)) * z + y
            numbers += runs.spread(dims[0].astype(np.int64)) * across
        return numbers
