"""Quality and time of ``consensus``: test set, touched once before training and once after, mean and deviation.

    python benchmarks/consensus.py --rows mnist,fashion-mnist --data-dir DATA --workers 5 --out consensus.json
    python benchmarks/consensus.py --rows 'cifar10 resnet9' --seeds 0,1 --data-dir DATA --workers 2
    python benchmarks/consensus.py --rows digits --device cpu --threads 2

Settings are those of the preset, with what ``ROWS`` changes; nothing is chosen on the test set. Controls: shuffled
labels; classes that fall in size to a twentieth; two classes without labels. What ``--out`` holds already is kept and
not run again.
"""

from __future__ import annotations

import argparse
import statistics
from dataclasses import dataclass, field
from typing import Any

from jobs import Job, changes, names, run_and_report, with_run_options

from semimetric.methods.consensus_defaults import BY_STEP


@dataclass(frozen=True)
class Row:
    """A dataset with settings other than its preset's."""

    dataset: str
    settings: dict[str, Any] = field(default_factory=dict)
    control: str = ""


RESNET = {"encoder": "resnet9", "selective": True, "epochs": 90, "naming": "epoch", "mirror": False, "compile": False}
FORMER = {
    "encoder": "resnet9",
    "veto": True,
    "metric": "principal",
    "projection": 0,
    "lr_schedule": "slow-cosine",
    "epochs": 16,
    "labels_per_class": 100,
    "hold_back": 0.0,
    "compile": False,
    "mirror": False,
}
"""Pseudo-labels of every step before ``resnet9-512`` had settings of its own, where they differ from these."""
STEPWISE = {"encoder": "resnet9-512", "hold_back": 0.0}
"""The encoder brings the settings of the method with it."""
ROWS = {
    "mnist": Row("mnist"),
    "fashion-mnist": Row("fashion-mnist"),
    "cifar10": Row("cifar10"),
    "cifar10 resnet9": Row("cifar10", RESNET),
    "cifar10 resnet9 by step": Row("cifar10", BY_STEP | FORMER),
    "cifar10 resnet9-512": Row("cifar10", STEPWISE | {"labels_per_class": 100}),
    "cifar10 resnet9-512 250 labels": Row("cifar10", STEPWISE | {"labels_per_class": 25}),
    "cifar10 resnet9-512 40 labels": Row("cifar10", STEPWISE | {"labels_per_class": 4}),
    "fashion-mnist resnet9-512": Row("fashion-mnist", STEPWISE),
    "digits": Row("digits"),
    "mnist 50 labels": Row("mnist", {"labels_per_class": 5}),
    "mnist 10 labels": Row("mnist", {"labels_per_class": 1}),
    "mnist shuffled labels": Row("mnist", control="shuffled"),
    "mnist unbalanced": Row("mnist", control="unbalanced"),
    "mnist two unlabelled": Row("mnist", control="two unlabelled"),
    "digits shuffled labels": Row("digits", control="shuffled"),
    "digits unbalanced": Row("digits", control="unbalanced"),
    "digits two unlabelled": Row("digits", control="two unlabelled"),
}


def spread(values: list[float], digits: int = 1) -> str:
    """Mean ± standard deviation."""
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{statistics.mean(values):.{digits}f} ± {deviation:.{digits}f}"


def table(outcomes: list[dict[str, Any]]) -> list[list[str]]:
    """A line per row: scores before and after, in per cent, and the seconds of a run from loading to scoring."""
    lines = [["row", "seeds", "Initial NMI", "R@1", "NMI", "R@1", "head", "seconds"]]
    for name in ROWS:
        mine = [outcome for outcome in outcomes if outcome["label"] == name]
        if not mine:
            continue
        scores = [
            spread([100 * outcome[when][score] for outcome in mine])
            for when in ("initial", "final")
            for score in ("nmi", "recall@1")
        ]
        heads = [100 * outcome["head_accuracy"] for outcome in mine if "head_accuracy" in outcome]
        seconds = spread([outcome["wall"] for outcome in mine], 0)
        lines.append([name, str(len(mine)), *scores, spread(heads) if heads else "", seconds])
    return lines


def parser() -> argparse.ArgumentParser:
    """The command line."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rows", type=names(ROWS), default="digits", help=f"of {', '.join(ROWS)}")
    options.add_argument("--seeds", default="0,1,2,3,4")
    options.add_argument("--set", action="append", default=[], help="[ROW:]NAME=VALUE, other than the preset's")
    return with_run_options(options)


def jobs_of(args: argparse.Namespace) -> list[Job]:
    """What is asked for."""
    return [
        Job(
            row.dataset,
            "consensus",
            int(seed),
            "default",
            row.settings | changes(args.set, name),
            name,
            control=row.control,
        )
        for name, row in ((name, ROWS[name]) for name in args.rows)
        for seed in args.seeds.split(",")
    ]


def main() -> None:
    """Run the rows, print the table, write the JSON."""
    args = parser().parse_args()
    run_and_report(jobs_of(args), args, table)


if __name__ == "__main__":
    main()
