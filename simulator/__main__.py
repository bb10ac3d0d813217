"""``python -m simulator``: run seeds, report faults, name the first that fails."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from simulator import runner


def main() -> int:
    """Exit code 0: all seeds held. 1: one did not. With ``--break``: 0 if the break was found."""
    parser = argparse.ArgumentParser(prog="simulator", description=__doc__)
    parser.add_argument("--seeds", type=int, default=500, help="how many seeds to run")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--fresh", action="store_true", help="begin at a seed that nobody has run")
    parser.add_argument(
        "--failures",
        type=Path,
        help="a file: run the seeds in it first, don't stop at one that fails, and write it down there",
    )
    parser.add_argument("--seed", type=int, help="run this seed alone, with everything that happens")
    parser.add_argument(
        "--break", dest="broken", help="switch off one protection: " + ", ".join(runner.RULES)
    )
    parser.add_argument("--jobs", type=int, default=0, help="processes (default: one a core)")
    parser.add_argument(
        "--world", choices=runner.WORLDS, default="streams", help="what the nodes work at (default: streams)"
    )
    options = parser.parse_args()
    if options.broken is not None and options.broken not in runner.RULES:
        parser.error(f"--break takes one of: {', '.join(runner.RULES)}")
    if options.seed is not None:
        return runner.replay(options.seed, options.broken, options.world)
    first = runner.fresh() if options.fresh else options.first
    return runner.sweep(first, options.seeds, options.broken, options.world, options.jobs, options.failures)


if __name__ == "__main__":
    sys.exit(main())
