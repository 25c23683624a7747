"""Ranks as vLLM lays them out: replicas of the engine, in each pipeline stages of tensor ranks."""

from dataclasses import dataclass

from kvtrace_cli.errors import ConfigError


@dataclass(frozen=True)
class Rank:
    """Place of a worker in each dimension, from 0; `world` counts within its replica."""

    tensor: int = 0
    pipeline: int = 0
    data: int = 0
    world: int = 0


@dataclass(frozen=True)
class Parallel:
    """How many ranks there are in each dimension."""

    tensor: int = 1
    pipeline: int = 1
    data: int = 1

    @property
    def world_size(self) -> int:
        """Workers of one replica."""
        return self.tensor * self.pipeline

    @property
    def devices(self) -> int:
        """Workers in all, a GPU each."""
        return self.data * self.world_size

    def ranks(self, data_rank: int) -> list[Rank]:
        """Return the ranks of one replica in the order of their world rank."""
        return [
            Rank(world % self.tensor, world // self.tensor, data_rank, world)
            for world in range(self.world_size)
        ]

    def device(self, rank: Rank) -> int:
        """Return the number of a worker among all, from 0."""
        return rank.data * self.world_size + rank.world

    def replica_name(self, replica: int) -> str:
        """Return what the log calls a replica."""
        return f"_DP{replica}" if self.data > 1 else ""

    def name(self, rank: Rank) -> str:
        """Return what the log calls a rank, as vLLM does: dimensions of one rank are left out."""
        parts = [
            ("DP", rank.data, self.data),
            ("PP", rank.pipeline, self.pipeline),
            ("TP", rank.tensor, self.tensor),
        ]
        return "".join(f"_{name}{number}" for name, number, size in parts if size > 1)

    def layers_of(self, rank: Rank, layers: int) -> range:
        """Return the layers of a rank's stage; what does not divide goes to the last but one ones.

        Raises:
            ConfigError: there are more stages than layers.
        """
        if layers < self.pipeline:
            raise ConfigError(
                f"--pipeline-parallel-size: found {self.pipeline}, expected at most {layers}, the "
                "layers of the model"
            )
        least, rest = divmod(layers, self.pipeline)
        counts = [least] * self.pipeline
        for stage in range(rest):
            counts[-2 - stage] += 1
        begin = sum(counts[: rank.pipeline])
        return range(begin, begin + counts[rank.pipeline])
