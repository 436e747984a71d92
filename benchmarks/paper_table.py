"""Quality beside the paper: Table 1, the 'w/o orth' ablation and frozen encoders, mean and deviation over seeds.

    python benchmarks/paper_table.py --data-dir DATA --seeds 0,1,2 --workers 6 --out benchmarks/results/paper_table.json
    python benchmarks/paper_table.py --rows lrml,seraph,isdml,apllr,apit --data-dir DATA --workers 9

Every model is chosen on the 15 % validation share; the test set is scored once before training and once after. The
classical methods learn a full matrix M; a row "largest L" scores its L largest dimensions, as many as the paper keeps.
"""

from __future__ import annotations

import argparse
import statistics
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jobs import Job, changes, machine, names, run_jobs, write_result

from semimetric.paper.published import COLUMNS, SEMI_SUPERVISED, WITHOUT_ORTHOGONALITY

PAPER_WIDTH = {"mnist": 64, "fashion-mnist": 64, "cifar10": 32}


@dataclass(frozen=True)
class Row:
    """A method with changed settings, and the paper's rows that answer to it."""

    method: str
    settings: dict[str, Any] = field(default_factory=dict)
    published: dict[str, tuple[float, ...]] = field(default_factory=dict)
    cut: bool = False


def classical(method: str) -> dict[str, Row]:
    """A classical method end to end, and its metric alone on the frozen encoder."""
    published = {dataset: rows[method] for dataset, rows in SEMI_SUPERVISED.items()}
    frozen = {"lr": 0.0, "epochs": 3, "epochs_per_partition": 1}
    return {
        method: Row(method, {}, published, cut=True),
        f"{method} metric only": Row(method, frozen, cut=True),
    }


PAPER_METHOD = "affinity-triplets"
ROWS: dict[str, Row] = {
    "orthogonal": Row(PAPER_METHOD, {}, {name: rows[PAPER_METHOD] for name, rows in SEMI_SUPERVISED.items()}),
    "w/o orth": Row(PAPER_METHOD, {"orthogonal": False}, WITHOUT_ORTHOGONALITY),
    "metric only": Row(PAPER_METHOD, {"lr": 0.0}),
}
for _method in ("lrml", "seraph", "isdml", "apllr", "apit"):
    ROWS |= classical(_method)


def aggregate(outcomes: list[dict[str, Any]], when: str) -> list[str]:
    """Mean and standard deviation of each column over seeds, in per cent."""
    cells = []
    for column in COLUMNS:
        values = [100 * outcome[when][column] for outcome in outcomes]
        spread = statistics.stdev(values) if len(values) > 1 else 0.0
        cells.append(f"{statistics.mean(values):.1f} ± {spread:.1f}")
    return cells


def table(outcomes: list[dict[str, Any]], datasets: list[str]) -> list[list[str]]:
    """Rows of the markdown table; an Initial row stands above the rows that start from it."""
    rows = [["dataset", "row", "NMI", "R@1", "R@2", "R@4", "R@8"]]
    for dataset in datasets:
        paper_initial = [f"{value:.1f}" for value in SEMI_SUPERVISED[dataset]["initial"]]
        rows.append([dataset, "Initial, paper", *paper_initial])
        started: list[str] = []
        for name, row in ROWS.items():
            mine = [outcome for outcome in outcomes if outcome["label"] == f"{dataset} {name}"]
            if not mine:
                continue
            initial = aggregate(mine, "initial")
            if initial != started:
                rows.append([dataset, "Initial, here", *initial])
                started = initial
            rows += rows_of(dataset, name, row, mine)
    return rows


def rows_of(dataset: str, name: str, row: Row, mine: list[dict[str, Any]]) -> list[list[str]]:
    """The paper's row, where it has one, ours, and ours cut to the paper's width."""
    rows = []
    if dataset in row.published:
        rows.append([dataset, f"{name}, paper", *(f"{value:.1f}" for value in row.published[dataset])])
    rows.append([dataset, f"{name}, here", *aggregate(mine, "final")])
    if row.cut:
        rows.append([dataset, f"{name}, largest {PAPER_WIDTH[dataset]}", *aggregate(mine, "cut")])
    return rows


def parser() -> argparse.ArgumentParser:
    """The command line."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--datasets", type=names(PAPER_WIDTH), default="mnist,fashion-mnist,cifar10")
    options.add_argument("--rows", type=names(ROWS), default="orthogonal,w/o orth", help=f"of {', '.join(ROWS)}")
    options.add_argument("--seeds", default="0,1,2")
    options.add_argument("--set", action="append", default=[], help="[DATASET or ROW:]NAME=VALUE, for a change")
    options.add_argument("--data-dir", type=Path)
    options.add_argument("--workers", type=int, default=1)
    options.add_argument("--out", type=Path)
    return options


def jobs_of(args: argparse.Namespace) -> list[Job]:
    """What is asked for."""
    return [
        Job(
            dataset,
            ROWS[name].method,
            int(seed),
            "paper",
            ROWS[name].settings | changes(args.set, dataset) | changes(args.set, name),
            f"{dataset} {name}",
            PAPER_WIDTH[dataset] if ROWS[name].cut else None,
        )
        for dataset in args.datasets
        for name in args.rows
        for seed in args.seeds.split(",")
    ]


def main() -> None:
    """Run all jobs, print the table, write the JSON."""
    args = parser().parse_args()
    outcomes: list[dict[str, Any]] = []
    for outcome in run_jobs(jobs_of(args), args.data_dir, workers=args.workers):
        outcomes.append(outcome)
        write_result(args.out, machine() | {"table": table(outcomes, args.datasets), "jobs": outcomes})
    print("\n".join("| " + " | ".join(row) + " |" for row in table(outcomes, args.datasets)))


if __name__ == "__main__":
    main()
