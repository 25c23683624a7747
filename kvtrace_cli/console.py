"""The two consoles: `out` carries data, `err` everything else."""

from rich.console import Console

out = Console(soft_wrap=False, highlight=False)
err = Console(stderr=True, highlight=False)
