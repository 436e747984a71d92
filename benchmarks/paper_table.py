"""Quality beside the paper: Table 1, the 'w/o orth' ablation and a frozen encoder, mean and deviation over seeds.

    python benchmarks/paper_table.py --data-dir DATA --seeds 0,1,2 --workers 6 --out benchmarks/results/paper_table.json

Every model is chosen on the 15 % validation share; the test set is scored once before training and once after.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from typing import Any

from jobs import Job, machine, run_jobs, value_of, write_result

from semimetric.paper.published import COLUMNS, SEMI_SUPERVISED, WITHOUT_ORTHOGONALITY

VARIANTS = {"orthogonal": {}, "w/o orth": {"orthogonal": False}, "metric only": {"lr": 0.0}}


def published(dataset: str, variant: str) -> tuple[float, ...] | None:
    """The paper's row, where it has one: it shows nothing for a frozen encoder."""
    rows = {"orthogonal": SEMI_SUPERVISED[dataset]["affinity-triplets"], "w/o orth": WITHOUT_ORTHOGONALITY[dataset]}
    return rows.get(variant)


def aggregate(outcomes: list[dict[str, Any]], when: str) -> list[str]:
    """Mean and standard deviation of each column over seeds, in per cent."""
    cells = []
    for column in COLUMNS:
        values = [100 * outcome[when][column] for outcome in outcomes]
        spread = statistics.stdev(values) if len(values) > 1 else 0.0
        cells.append(f"{statistics.mean(values):.1f} ± {spread:.1f}")
    return cells


def table(outcomes: list[dict[str, Any]], datasets: list[str]) -> list[list[str]]:
    """Rows of the markdown table."""
    rows = [["dataset", "row", "NMI", "R@1", "R@2", "R@4", "R@8"]]
    for dataset in datasets:
        for variant in VARIANTS:
            mine = [o for o in outcomes if o["dataset"] == dataset and o["label"].endswith(variant)]
            if not mine:
                continue
            if variant == "orthogonal":
                initial = [f"{value:.1f}" for value in SEMI_SUPERVISED[dataset]["initial"]]
                rows.append([dataset, "Initial, paper", *initial])
                rows.append([dataset, "Initial, here", *aggregate(mine, "initial")])
            paper = published(dataset, variant)
            if paper is not None:
                rows.append([dataset, f"{variant}, paper", *(f"{value:.1f}" for value in paper)])
            rows.append([dataset, f"{variant}, here", *aggregate(mine, "final")])
    return rows


def changes(entries: list[str], dataset: str) -> dict[str, Any]:
    """The settings of ``--set`` that concern a dataset."""
    found = {}
    for entry in entries:
        scope, _, assignment = entry.rpartition(":")
        if scope in ("", dataset):
            name, value = assignment.split("=")
            found[name] = value_of(value)
    return found


def main() -> None:
    """Run all jobs, print the table, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--datasets", default="mnist,fashion-mnist,cifar10")
    parser.add_argument("--variants", default=",".join(VARIANTS))
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--set", action="append", default=[], help="[DATASET:]NAME=VALUE, other than the preset's")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()

    datasets = args.datasets.split(",")
    jobs = [
        Job(
            dataset,
            "affinity-triplets",
            int(seed),
            "paper",
            settings | changes(args.set, dataset),
            f"{dataset} {variant}",
        )
        for dataset in datasets
        for variant, settings in VARIANTS.items()
        if variant in args.variants.split(",")
        for seed in args.seeds.split(",")
    ]
    outcomes: list[dict[str, Any]] = []
    for outcome in run_jobs(jobs, args.data_dir, workers=args.workers):
        outcomes.append(outcome)
        write_result(args.out, machine() | {"table": table(outcomes, datasets), "jobs": outcomes})
    print("\n".join("| " + " | ".join(row) + " |" for row in table(outcomes, datasets)))


if __name__ == "__main__":
    main()
