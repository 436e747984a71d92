"""Supervised and unsupervised baselines beside the semi-supervised methods: test set, mean and deviation over seeds.

    python benchmarks/baselines.py --datasets mnist,fashion-mnist --data-dir DATA --workers 6 --out baselines.json
    python benchmarks/baselines.py --rows instance,deepcluster --datasets cifar10 --data-dir DATA --workers 3

All train the same network to an embedding of the same width, with the settings of the default preset. The test set is
scored once before training and once after. ``--validate``, for choosing settings, withholds 15 % of each training
class, scores the last model on it and does not touch the test set. What ``--out`` holds already is kept.
"""

from __future__ import annotations

import argparse
from typing import Any

from consensus import spread
from jobs import Job, changes, names, run_and_report, with_run_options

from semimetric.paper.published import COLUMNS

ROWS = (
    "triplet",
    "angular",
    "exemplar",
    "rotation",
    "instance",
    "deepcluster",
    "synthetic",
    "stml",
    "affinity-triplets",
    "consensus",
)
WIDTH = {"digits": 32, "mnist": 64, "fashion-mnist": 64, "cifar10": 32}
"""Dimensions of every embedding: those that the paper's method keeps."""
SETTINGS: dict[str, dict[str, Any]] = {"stml": {"labels_per_class": 0}}
"""``stml`` can use labels; here it has none, like the baselines above it."""


def job(dataset: str, method: str, seed: int, entries: list[str], validate: bool) -> Job:
    """One run at the width of its dataset, with the settings of ``--set`` that concern the dataset or the method."""
    settings = (
        {"components": WIDTH[dataset]} | SETTINGS.get(method, {}) | changes(entries, dataset) | changes(entries, method)
    )
    return Job(dataset, method, seed, "default", settings, f"{dataset} {method}", validate=validate)


def table(outcomes: list[dict[str, Any]]) -> list[list[str]]:
    """A line for each dataset and method; an Initial line stands above the methods that start from it."""
    lines = [["dataset", "row", "seeds", "NMI", "R@1", "R@2", "R@4", "R@8", "seconds"]]
    started: list[str] = []
    for label in sorted({outcome["label"] for outcome in outcomes}, key=order):
        mine = [outcome for outcome in outcomes if outcome["label"] == label]
        dataset, method = label.split(" ")
        start, end = (
            [
                dataset,
                str(len(mine)),
                *(spread([100 * outcome[when][column] for outcome in mine]) for column in COLUMNS),
            ]
            for when in ("initial", "final")
        )
        if start != started:
            lines.append([dataset, "Initial", *start[1:], ""])
            started = start
        lines.append([dataset, method, *end[1:], spread([outcome["wall"] for outcome in mine], 0)])
    return lines


def order(label: str) -> tuple[int, int]:
    """Datasets and methods in the order in which they are listed."""
    dataset, method = label.split(" ")
    return list(WIDTH).index(dataset), ROWS.index(method)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument(
        "--datasets", type=names(WIDTH), default="mnist,fashion-mnist,cifar10", help=f"of {', '.join(WIDTH)}"
    )
    options.add_argument("--rows", type=names(ROWS), default=",".join(ROWS), help="methods")
    options.add_argument("--seeds", default="0,1,2")
    options.add_argument("--set", action="append", default=[], help="[DATASET or METHOD:]NAME=VALUE, for a change")
    options.add_argument("--validate", action="store_true", help="score withheld training examples instead")
    return with_run_options(options)


def jobs_of(args: argparse.Namespace) -> list[Job]:
    """What is asked for."""
    return [
        job(dataset, method, int(seed), args.set, args.validate)
        for dataset in args.datasets
        for method in args.rows
        for seed in args.seeds.split(",")
    ]


def main() -> None:
    """Run all jobs, print the table, write the JSON."""
    args = parser().parse_args()
    run_and_report(jobs_of(args), args, table)


if __name__ == "__main__":
    main()
