"""``consensus`` on small tables beside scikit-learn's LabelSpreading and the linear metrics, all in one run.

    python benchmarks/vectors.py --out benchmarks/results/vectors.json
    python benchmarks/vectors.py --validate --seeds 5 --set instance=0.3

Examples, labels and standardisation are those of ``linear.py``. Metrics and ``consensus`` give a test example the label
of the nearest labelled one. LabelSpreading has scikit-learn's defaults, with either of its kernels, and names the test
examples itself: from the columns as they are, and from the columns under each linear metric. The table shows the metric
that is the best of all on the test examples themselves, which favours it.

With ``--validate`` nothing of a test half is seen: splits are others, and the unlabelled training examples are what is
to be named. The settings below were chosen so.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from jobs import changes, machine, write_result
from linear import (
    DATASETS,
    METHODS,
    Array,
    Task,
    Transform,
    few_labels,
    halves,
    nearest_accuracy,
    table,
    task_of,
    transforms,
)
from sklearn.semi_supervised import LabelSpreading

from semimetric.encoders import build_encoder, encode
from semimetric.methods import METHODS as ALL_METHODS
from semimetric.methods import build_method
from semimetric.pipeline.presets import training_settings
from semimetric.training import Trainer, TrainingData

FIRST_VALIDATION_SEED = 100
SETTINGS: dict[str, Any] = {
    "k": 5,
    "gamma": 0.95,
    "head_share": 0.3,
    "instance": 0.2,
    "selective": False,
    "hold_back": 0.0,
}
"""Of ``consensus`` and of its training, for all three datasets; the rest are the defaults."""

KERNELS: dict[str, dict[str, Any]] = {
    "LabelSpreading knn (n_neighbors 7)": {"kernel": "knn", "n_neighbors": 7},
    "LabelSpreading rbf (gamma 20)": {"kernel": "rbf", "gamma": 20},
}

Scores = dict[str, list[dict[str, float]]]


def validation_task(name: str, seed: int) -> Task:
    """A few labels of the training half, the rest of it to be found."""
    train, _, classes, _ = halves(name, seed)
    labels = few_labels(classes, seed)
    return Task(train, labels, train[labels < 0], classes[labels < 0])


def spreading_accuracy(task: Task, transform: Transform, options: dict[str, Any]) -> float:
    """Accuracy of LabelSpreading on the test examples, in per cent."""
    model = LabelSpreading(**options).fit(transform(task.train), task.labels)
    return 100 * float(model.score(transform(task.test), task.wanted))


def consensus(task: Task, seed: int, settings: dict[str, Any]) -> Transform:
    """The embedding that ``consensus`` learns with an ``mlp``."""
    own = {field.name for field in dataclasses.fields(ALL_METHODS["consensus"].Settings)}
    method = build_method("consensus", **{name: value for name, value in settings.items() if name in own})
    training = {name: value for name, value in settings.items() if name not in own}
    data = TrainingData(torch.from_numpy(task.train).float(), torch.from_numpy(task.labels))
    encoder = build_encoder("mlp", tuple(data.inputs.shape[1:]), seed)
    result = Trainer(encoder, method, data, training_settings("consensus", **training), seed).fit()

    def embed(features: Array) -> Array:
        return result.metric.transform(encode(result.encoder, torch.from_numpy(features).float())).numpy()

    return embed


def on(way: str, kernel: str) -> str:
    """The name of LabelSpreading in the space of a metric."""
    return f"{kernel} on {way}"


def accuracies(task: Task, seed: int, settings: dict[str, Any]) -> dict[str, float]:
    """Accuracy of all ways on one split, in per cent, and the seconds that ``consensus`` takes."""
    scores = {}
    for way, transform in transforms(task.train, task.labels).items():
        scores[way] = nearest_accuracy(task, transform)
        for kernel, options in KERNELS.items():
            scores[on(way, kernel)] = spreading_accuracy(task, transform, options)
    began = time.perf_counter()
    embed = consensus(task, seed, settings)
    scores["seconds"] = time.perf_counter() - began
    scores["consensus"] = nearest_accuracy(task, embed)
    return scores


def best_linear(runs: list[dict[str, float]]) -> str:
    """The linear method with the best mean."""
    means = {way: statistics.mean(scores[way] for scores in runs) for way in METHODS}
    return max(means, key=means.__getitem__)


def with_best_linear(results: Scores, best: dict[str, str]) -> Scores:
    """The scores with those of LabelSpreading in the space of each dataset's best linear method."""
    return {
        name: [
            scores | {on("best linear", kernel): scores[on(best[name], kernel)] for kernel in KERNELS}
            for scores in runs
        ]
        for name, runs in results.items()
    }


def measure(seeds: range, validate: bool, settings: dict[str, Any]) -> Scores:
    """All scores by dataset and seed; how far it is goes to standard error."""
    results: Scores = {}
    for name in DATASETS:
        results[name] = []
        for seed in seeds:
            task = validation_task(name, seed) if validate else task_of(name, seed)
            results[name].append(accuracies(task, seed, settings))
            print(f"{name} seed {seed}: consensus {results[name][-1]['seconds']:.1f} s", file=sys.stderr, flush=True)
    return results


def parser() -> argparse.ArgumentParser:
    """The command line."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--seeds", type=int, default=10)
    options.add_argument("--validate", action="store_true", help="other splits, without their test halves")
    options.add_argument("--set", action="append", default=[], help="NAME=VALUE of consensus or its training")
    options.add_argument("--out", type=Path)
    return options


def main() -> None:
    """Measure all, print a table, write the JSON."""
    args = parser().parse_args()

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    settings = SETTINGS | changes(args.set, "")
    first = FIRST_VALIDATION_SEED if args.validate else 0
    results = measure(range(first, first + args.seeds), args.validate, settings)
    best = {name: best_linear(runs) for name, runs in results.items()}
    spreading = [on(way, kernel) for way in ("euclidean", "best linear") for kernel in KERNELS]
    lines = table(
        with_best_linear(results, best), ("euclidean", "whitening", *METHODS, *spreading, "consensus", "seconds")
    )
    print("\n".join("| " + " | ".join(line) + " |" for line in lines))
    print("best linear:", ", ".join(f"{name} {way}" for name, way in best.items()))
    write_result(
        args.out, machine() | {"settings": settings, "best_linear": best, "table": lines, "accuracies": results}
    )


if __name__ == "__main__":
    main()
