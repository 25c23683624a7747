"""`python -m kvtrace_cli` and the `kvtrace` script."""

import sys

from kvtrace_cli.app import main


def run() -> None:
    """Run the command line and exit with its code."""
    sys.exit(main(sys.argv[1:]))


if __name__ == "__main__":
    run()
