"""Choose a setting on validation data: a grid over seeds, judged by what selects models in training, never by test.

python benchmarks/sweep.py --method lrml --dataset mnist --grid lr=1e-8,1e-7 --seeds 0,1 --data-dir DATA
"""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path
from typing import Any

from jobs import Job, machine, run_jobs, value_of, write_result


def selection(record: dict[str, Any]) -> str:
    """NMI (where there is one) and Recall@1 of an epoch's selection, in per cent."""
    names = ("selection_nmi", "selection_recall@1")
    return " / ".join(f"{100 * record[name]:5.1f}" for name in names if name in record)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--dataset", action="append", required=True)
    options.add_argument("--method", action="append", required=True)
    options.add_argument("--preset", default="paper")
    options.add_argument("--grid", action="append", default=[], help="NAME=VALUE,VALUE,...")
    options.add_argument("--seeds", default="0")
    options.add_argument("--data-dir", type=Path)
    options.add_argument("--workers", type=int, default=1)
    options.add_argument("--out", type=Path)
    return options


def jobs_of(args: argparse.Namespace) -> list[Job]:
    """What is asked for."""
    axes = [(name, values.split(",")) for name, values in (entry.split("=") for entry in args.grid)]
    jobs = []
    for dataset, method, *choice in itertools.product(args.dataset, args.method, *(values for _, values in axes)):
        settings = {name: value_of(value) for (name, _), value in zip(axes, choice, strict=True)}
        label = " ".join([dataset, method, *(f"{name}={value}" for name, value in settings.items())])
        jobs += [Job(dataset, method, int(seed), args.preset, settings, label) for seed in args.seeds.split(",")]
    return jobs


def main() -> None:
    """Run the grid and print a line per job."""
    args = parser().parse_args()
    rows = []
    for outcome in run_jobs(jobs_of(args), args.data_dir, workers=args.workers):
        first, best, last = (outcome["history"][i] for i in (0, outcome["best_epoch"], -1))
        shown = f"start {selection(first)}  best {selection(best)} (epoch {best['epoch']})  last {selection(last)}"
        line = f"{outcome['label']} seed {outcome['seed']}: {shown}  {outcome['seconds']:.0f} s"
        print(line, flush=True)
        rows.append((line, without_test(outcome)))
        write_result(args.out, machine() | {"jobs": [job for _, job in rows]})
    print("\nvalidation NMI / R@1", *sorted(line for line, _ in rows), sep="\n")


def without_test(outcome: dict[str, Any]) -> dict[str, Any]:
    """The outcome without its test scores: a sweep must not know them."""
    return {name: value for name, value in outcome.items() if name not in ("initial", "final")}


if __name__ == "__main__":
    main()
