"""What each part of ``consensus`` brings, on withheld training examples; the test set is not touched.

    python benchmarks/consensus_ablation.py --datasets fashion-mnist,cifar10 --data-dir DATA --workers 8
    python benchmarks/consensus_ablation.py --datasets digits --seeds 0,1,2,3,4 --device cpu

Every variant changes the preset in one thing (half of the dimensions: of encoders with 64). ``--set`` changes a setting
of all, such as a shorter schedule.
"""

from __future__ import annotations

import argparse
from typing import Any

from consensus import spread
from jobs import Job, machine, run_jobs, value_of, with_run_options, write_result

VARIANTS: dict[str, dict[str, Any]] = {
    "as shipped": {},
    "graph alone": {"head_share": 0.0},
    "head alone": {"head_share": 1.0},
    "no consistency": {"consistency": 0.0},
    "no contrast of classes": {"contrast": 0.0},
    "no contrast of instances": {"instance": 0.0},
    "no views": {"augmentation": "none"},
    "no averaged weights": {"average": 0.0},
    "constant learning rate": {"lr_schedule": "constant"},
    "no veto of the graph": {"veto": False},
    "selective": {"selective": True},
    "no labels held back": {"hold_back": 0.0},
    "half of the dimensions": {"components": 32},
}


def variant_of(text: str) -> tuple[str, dict[str, Any]]:
    """A named variant, or one written as NAME=VALUE with several joined by '+'."""
    if text in VARIANTS:
        return text, VARIANTS[text]
    return text, {name: value_of(value) for name, value in (part.split("=") for part in text.split("+"))}


def table(outcomes: list[dict[str, Any]], datasets: list[str], variants: list[str]) -> list[list[str]]:
    """A line per variant; NMI and Recall@1 of each dataset, in per cent."""
    lines = [["variant", *(f"{dataset} {score}" for dataset in datasets for score in ("NMI", "R@1", "s"))]]
    for variant in variants:
        cells = [variant]
        for dataset in datasets:
            mine = [outcome for outcome in outcomes if outcome["label"] == f"{dataset} {variant}"]
            scores = [[100 * outcome["final"][score] for outcome in mine] for score in ("nmi", "recall@1")]
            cells += [spread(values) for values in scores if values]
            cells += [spread([outcome["seconds"] for outcome in mine], 0)] if mine else [""] * 3
        lines.append(cells)
    return lines


def parser() -> argparse.ArgumentParser:
    """The command line."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--datasets", default="digits")
    options.add_argument("--variants", default=",".join(VARIANTS), help="by name, or as NAME=VALUE+NAME=VALUE")
    options.add_argument("--set", action="append", default=[], help="NAME=VALUE, other than the preset's, for all")
    options.add_argument("--seeds", default="0")
    return with_run_options(options)


def jobs_of(args: argparse.Namespace) -> list[Job]:
    """What is asked for."""
    common = {name: value_of(value) for name, value in (entry.split("=") for entry in args.set)}
    return [
        Job(dataset, "consensus", int(seed), "default", common | settings, f"{dataset} {name}", validate=True)
        for dataset in args.datasets.split(",")
        for name, settings in map(variant_of, args.variants.split(","))
        for seed in args.seeds.split(",")
    ]


def main() -> None:
    """Run all variants on all datasets, print the table, write the JSON."""
    args = parser().parse_args()
    datasets, variants = args.datasets.split(","), args.variants.split(",")
    outcomes: list[dict[str, Any]] = []
    for outcome in run_jobs(jobs_of(args), args.data_dir, args.device, args.workers, args.threads):
        outcomes.append(outcome)
        write_result(args.out, machine() | {"table": table(outcomes, datasets, variants), "jobs": outcomes})
    print("\n".join("| " + " | ".join(line) + " |" for line in table(outcomes, datasets, variants)))


if __name__ == "__main__":
    main()
