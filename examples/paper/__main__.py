"""The one command: run the experiments asked for, then write RESULTS.md."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from examples.paper import results
from examples.paper.datasets import Datasets
from examples.paper.progress import Progress, TimeIsUpError

# In the paper's order; the last two are ours.
EXPERIMENTS = (
    "generalisation",
    "stability",
    "conditioning",
    "clustering",
    "reconstruction",
    "running_time",
    "out_of_core",
    "variants",
)
HERE = Path(__file__).parent


def experiment(name: str) -> ModuleType:
    """Import an experiment: NAME, run(data, size, out, progress) and report(out)."""
    return importlib.import_module(f"examples.paper.{name}")


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(prog="python -m examples.paper", description=__doc__)
    p.add_argument("--data", default=os.environ.get("RGCSS_DATA"), help="folder of .npz files (default: RGCSS_DATA)")
    size = p.add_mutually_exclusive_group(required=True)
    size.add_argument("--quick", dest="size", action="store_const", const="quick", help="all in under two minutes")
    size.add_argument("--full", dest="size", action="store_const", const="full", help="the paper's sizes; hours")
    size.add_argument("--report", dest="size", action="store_const", const=None, help="only write RESULTS.md again")
    p.add_argument("--only", nargs="+", metavar="NAME", choices=EXPERIMENTS, default=EXPERIMENTS)
    p.add_argument(
        "--out",
        type=Path,
        help="folder for RESULTS.md and results/ (default: paper-quick, or examples/paper for --full)",
    )
    p.add_argument(
        "--minutes",
        type=float,
        help="stop each experiment between two repetitions after so long; the same command goes on from there",
    )
    p.add_argument("--fresh", action="store_true", help="begin anew instead of going on where a run was stopped")
    return p


def main(argv: Sequence[str] | None = None) -> None:
    args = parser().parse_args(argv)
    out = args.out or (Path("paper-quick") if args.size == "quick" else HERE)
    if args.size is not None:
        run(args.only, Datasets(args.data), args.size, out / "results", fresh=args.fresh, minutes=args.minutes)
    results.write(EXPERIMENTS, experiment, out / "results", out / "RESULTS.md")
    print(out / "RESULTS.md")


def run(
    names: Sequence[str], data: Datasets, size: str, out: Path, *, fresh: bool, minutes: float | None = None
) -> None:
    """Run experiments one after the other, each for so many minutes at most; each goes on where it was stopped."""
    out.mkdir(parents=True, exist_ok=True)
    with Progress() as progress:
        for name in progress.track(names, "experiments"):
            with results.alone(out, name):
                if fresh:
                    results.forget(out, name)
                results.begin(out, name, size)
                progress.note(f"{name} ({size})")
                progress.limit(minutes)
                try:
                    experiment(name).run(data, size, out, progress)
                except TimeIsUpError:
                    progress.note(f"{name}: the time is up")
                else:
                    results.end(out, name)
                progress.limit(None)


if __name__ == "__main__":
    try:
        main()
    except (FileNotFoundError, FileExistsError, ValueError) as error:
        sys.exit(f"error: {error}")
