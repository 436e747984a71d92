"""The metric that ``consensus`` returns: Euclidean, or whitened by how classes vary (``--metric whitened``).

    python benchmarks/whitened_metric.py --data-dir DATA --out benchmarks/results/whitened_metric.json
    python benchmarks/whitened_metric.py --datasets fashion-mnist --set epochs=20 --set passes=4 --data-dir DATA

Each network is trained once, shorter than by its preset unless told, without 15 % of each class. These are scored with
several metrics on the same features: none, and whitening with several shrinkages. *Before*: whitening by the features
at the beginning of the last epoch, instead of those after it. ``--widths`` adds metrics that keep fewer dimensions: the
first directions of each whitening, and principal components. The test set is not touched. What ``--out`` holds already
is kept and not run again. A training takes two to six minutes on one core, of digits ten seconds.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import time
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jobs import Job, changes, machine, names, rounded, write_result
from torch import Tensor

from semimetric.data.stored import some_of
from semimetric.evaluation import evaluate
from semimetric.methods.agreement import Agreement
from semimetric.metric import Metric, within_class_whitening
from semimetric.pipeline.data import benchmark_data, load_examples
from semimetric.pipeline.fit import build_trainer, prepare, pretrain_encoder
from semimetric.training import Trainer, choose_device

SHRINKAGES = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
NONE, BEFORE = "none", "before"
SHORT: dict[str, Any] = {"metric": "principal", "hold_back": 0.0}


class Training(NamedTuple):
    """What is changed in a preset, and how many seeds are run."""

    seeds: int
    changes: dict[str, Any]


TRAININGS = {
    "fashion-mnist": Training(3, {"epochs": 4, "passes": 2, "precision": "float32"}),
    "mnist": Training(2, {"epochs": 3, "passes": 1}),
    "cifar10": Training(2, {"epochs": 4, "passes": 1, "compile": False, "precision": "auto"}),
    "digits": Training(20, {}),
}


class Named(NamedTuple):
    """Features (N, d) of training examples, and their pseudo-labels."""

    features: Tensor
    found: Agreement

    def whitened(self, shrinkage: float, width: int = 0) -> Metric:
        """The metric that ``consensus`` returns with ``--metric whitened``; a width of 0 keeps all dimensions."""
        targets, weights = self.found.targets, self.found.weights
        return within_class_whitening(self.features, targets, weights, width or self.features.shape[1], shrinkage)


def trainer_of(job: Job, data_dir: Path | None, device: torch.device) -> Trainer:
    """A trainer whose validation data are withheld training examples."""
    plan = job.plan()
    examples = benchmark_data(plan, load_examples(plan, data_dir, device))
    trainer = build_trainer(plan, prepare(plan, dataclasses.replace(examples, test=None), device).training, device)
    pretrain_encoder(plan, trainer)
    return trainer


def trained(trainer: Trainer) -> tuple[Named, Named]:
    """The training examples at the beginning of the last epoch, and after it."""
    seen: list[Named] = []

    def keep(metric: Metric, features: Tensor, found: Agreement) -> Metric:
        seen[:] = [Named(features, found)]
        return metric

    trainer.method.update_metric = keep  # type: ignore[assignment, method-assign, union-attr]
    trainer.fit()
    rows = torch.cat([trainer.data.labelled, trainer.schedule._current.to(trainer.device)])
    return seen[0], Named(trainer._features(some_of(trainer.data.inputs, rows)), seen[0].found)


def scores_of(trainer: Trainer, widths: list[int]) -> dict[str, dict[str, float]]:
    """NMI and Recall@1 of the withheld examples by metric, in per cent."""
    before, after = trained(trainer)
    data = trainer.data
    assert data.validation_inputs is not None
    points, classes = trainer._features(data.validation_inputs), data.validation_labels
    metrics = {NONE: Metric.identity(points.shape[1]).to(trainer.device)}
    metrics |= {str(shrinkage): after.whitened(shrinkage) for shrinkage in SHRINKAGES}
    metrics |= {f"{shrinkage} {BEFORE}": before.whitened(shrinkage) for shrinkage in SHRINKAGES}
    for width in widths:
        metrics[f"principal, {width} dimensions"] = Metric.principal(after.features, width)
        metrics |= {f"{shrinkage}, {width} dimensions": after.whitened(shrinkage, width) for shrinkage in SHRINKAGES}
    found = {name: evaluate(metric.transform(points), classes, ks=(1,)) for name, metric in metrics.items()}
    return {name: {key: 100 * score[key] for key in ("nmi", "recall@1")} for name, score in found.items()}


def table(runs: list[dict[str, Any]]) -> list[list[str]]:
    """A line for each metric; the mean NMI / R@1 over the seeds of each dataset."""
    datasets = [name for name in TRAININGS if any(run["dataset"] == name for run in runs)]
    lines = [["shrinkage", *datasets]]
    for way in runs[0]["scores"]:
        cells = [[run["scores"][way] for run in runs if run["dataset"] == name] for name in datasets]
        lines.append([way, *(" / ".join(mean(cell, key) for key in ("nmi", "recall@1")) for cell in cells)])
    return lines


def mean(scores: list[dict[str, float]], key: str) -> str:
    """The mean of one score over seeds."""
    return f"{statistics.mean(score[key] for score in scores):.1f}"


def parser() -> argparse.ArgumentParser:
    """The command line."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--datasets", type=names(TRAININGS), default=",".join(TRAININGS))
    most = max(one.seeds for one in TRAININGS.values())
    options.add_argument("--seeds", type=int, choices=range(1, most + 1), default=most, metavar="N", help="at most")
    options.add_argument("--set", action="append", default=[], help="[DATASET:]NAME=VALUE, other than the short ones")
    options.add_argument("--widths", type=int, nargs="*", default=[], help="dimensions that more metrics keep")
    options.add_argument("--data-dir", type=Path)
    options.add_argument("--device", default="cpu")
    options.add_argument("--out", type=Path)
    return options


def jobs_of(args: argparse.Namespace) -> list[Job]:
    """What is asked for."""
    return [
        Job(dataset, "consensus", seed, "default", settings, validate=True)
        for dataset in args.datasets
        for settings in [SHORT | TRAININGS[dataset].changes | changes(args.set, dataset)]
        for seed in range(min(args.seeds, TRAININGS[dataset].seeds))
    ]


def left(jobs: list[Job], runs: list[dict[str, Any]], widths: list[int]) -> list[Job]:
    """The jobs that are not among the runs; runs of other settings or widths are refused."""
    done = {(run["dataset"], run["seed"]): run["settings"] for run in runs}
    if any(done.get((job.dataset, job.seed), rounded(job.settings)) != rounded(job.settings) for job in jobs):
        raise SystemExit("--out holds runs with other settings; choose another file.")
    if any(run["widths"] != widths for run in runs):
        raise SystemExit("--out holds runs with other --widths; choose another file.")
    return [job for job in jobs if (job.dataset, job.seed) not in done]


def main() -> None:
    """Train and score what is not there yet, print and write."""
    args = parser().parse_args()
    torch.set_num_threads(1)
    there = args.out is not None and args.out.exists()
    runs: list[dict[str, Any]] = json.loads(args.out.read_text())["runs"] if there else []
    for job in left(jobs_of(args), runs, args.widths):
        began = time.perf_counter()
        scores = scores_of(trainer_of(job, args.data_dir, choose_device(args.device)), args.widths)
        facts = {"dataset": job.dataset, "seed": job.seed, "settings": job.settings, "widths": args.widths}
        runs.append(facts | {"scores": scores, "seconds": time.perf_counter() - began})
        print(job.dataset, job.seed, {name: f"{s['nmi']:.1f} / {s['recall@1']:.1f}" for name, s in scores.items()})
        write_result(args.out, machine() | {"threads": 1, "table": table(runs), "runs": runs})
    print("\n".join("| " + " | ".join(line) + " |" for line in table(runs)))


if __name__ == "__main__":
    main()
