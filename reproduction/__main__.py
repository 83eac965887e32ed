"""``python -m reproduction NAME``: run experiments by name."""

from __future__ import annotations

import argparse
import sys
import time

from reproduction.config import BEYOND, NAMES
from reproduction.run import run


def main() -> int:
    """Read the arguments and run."""
    parser = argparse.ArgumentParser(prog="python -m reproduction", description=run.__doc__)
    parser.add_argument("names", nargs="+", choices=(*NAMES, *BEYOND, "all"), metavar="NAME")
    parser.add_argument("--seeds", type=int)
    parser.add_argument("--jobs", type=int)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rows", nargs="+", help="only these rows of the experiments")
    parser.add_argument("--output")
    parser.add_argument("--tables", help="folder of CSV files for the experiments real and gaps")
    given = vars(parser.parse_args())
    begun = time.monotonic()

    def progress(what: str, done: int, total: int, cpu: float) -> None:
        wall = time.monotonic() - begun
        line = f"{wall:5.0f} s: {done} of {total} runs, the last {what} in {cpu:.1f} s"
        print(line, file=sys.stderr, flush=True)

    for folder in run(**given, progress=progress):
        print(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
