"""What people call a rank: the dimensions with more than one, data first."""

from collections.abc import Mapping
from typing import Final

TENSOR: Final = "tensor"
PIPELINE: Final = "pipeline"
DATA: Final = "data"
# In the order in which a name has them.
LETTERS: Final = {DATA: "DP", TENSOR: "TP", PIPELINE: "PP"}


def rank_name(place: Mapping[str, int], sizes: Mapping[str, int]) -> str:
    """Return a rank's name, such as `DP1 TP0`; empty if there is one rank in all.

    Args:
        place: its number in each dimension, from 0.
        sizes: how many there are in each dimension.
    """
    return " ".join(
        f"{letters}{place[dimension]}"
        for dimension, letters in LETTERS.items()
        if sizes[dimension] > 1
    )
