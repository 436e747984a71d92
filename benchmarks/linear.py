"""Linear metrics on small tables: 1-nearest-neighbour accuracy with 5 labels per class, beside Euclid and whitening.

    python benchmarks/linear.py --out benchmarks/results/linear.json

Half of each dataset, stratified, is for training and half for testing; columns are standardised on the training half.
All training examples shape the metric, 5 of each class with their labels; a test example gets the label of the nearest
labelled one. Hyper-parameters are the defaults, chosen elsewhere.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from consensus import spread
from jobs import machine, write_result
from sklearn.datasets import load_breast_cancer, load_digits, load_wine
from sklearn.decomposition import PCA
from sklearn.model_selection import train_test_split
from sklearn.neighbors import KNeighborsClassifier
from sklearn.preprocessing import StandardScaler

from semimetric import learn_metric

DATASETS = {"wine": load_wine, "breast_cancer": load_breast_cancer, "digits": load_digits}
METHODS = ("lrml", "seraph", "isdml", "apllr", "apit")
LABELS_PER_CLASS = 5

Array = np.ndarray[Any, Any]
Transform = Callable[[Array], Array]


@dataclass(frozen=True)
class Task:
    """Training examples (N, d) with their labels (N,), -1 = unlabelled; test examples with the labels to be found."""

    train: Array
    labels: Array
    test: Array
    wanted: Array


def task_of(name: str, seed: int) -> Task:
    """A few labels of the training half, all of the test half to be found."""
    train, test, classes, wanted = halves(name, seed)
    return Task(train, few_labels(classes, seed), test, wanted)


def halves(name: str, seed: int) -> tuple[Array, Array, Array, Array]:
    """Standardised training and test halves with their classes."""
    features, classes = DATASETS[name](return_X_y=True)
    train, test, known, wanted = train_test_split(features, classes, test_size=0.5, stratify=classes, random_state=seed)
    scaler = StandardScaler().fit(train)
    return scaler.transform(train), scaler.transform(test), known, wanted


def few_labels(classes: Array, seed: int) -> Array:
    """The classes of 5 random examples each, -1 for all others."""
    random = np.random.default_rng(seed)
    labels = np.full(len(classes), -1)
    for number in np.unique(classes):
        chosen = random.choice(np.flatnonzero(classes == number), LABELS_PER_CLASS, replace=False)
        labels[chosen] = number
    return labels


def transforms(train: Array, labels: Array) -> dict[str, Transform]:
    """What each way of measuring makes of features."""
    whitening = PCA(whiten=True).fit(train[:, train.std(0) > 0])
    found: dict[str, Transform] = {
        "euclidean": lambda x: x,
        "whitening": lambda x: whitening.transform(x[:, train.std(0) > 0]),
    }
    for method in METHODS:
        metric = learn_metric(train, labels, method).metric
        found[method] = lambda x, metric=metric: metric.transform(torch.from_numpy(x)).numpy()
    return found


def nearest_accuracy(task: Task, transform: Transform) -> float:
    """Accuracy on the test examples of the nearest labelled example's class, in per cent."""
    known = task.labels >= 0
    nearest = KNeighborsClassifier(1).fit(transform(task.train[known]), task.labels[known])
    return 100 * float(nearest.score(transform(task.test), task.wanted))


def accuracies(name: str, seed: int) -> dict[str, float]:
    """Accuracy of each way of measuring."""
    task = task_of(name, seed)
    return {way: nearest_accuracy(task, transform) for way, transform in transforms(task.train, task.labels).items()}


def table(results: dict[str, list[dict[str, float]]], ways: Sequence[str]) -> list[list[str]]:
    """A line for each way, a column for each dataset: mean ± standard deviation over the seeds."""
    lines = [[way, *(spread([scores[way] for scores in results[name]]) for name in results)] for way in ways]
    return [["", *results], *lines]


def parser() -> argparse.ArgumentParser:
    """The command line."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--seeds", type=int, default=10)
    options.add_argument("--out", type=Path)
    return options


def main() -> None:
    """Measure all, print a table, write the JSON."""
    args = parser().parse_args()

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    results = {name: [accuracies(name, seed) for seed in range(args.seeds)] for name in DATASETS}
    lines = table(results, ("euclidean", "whitening", *METHODS))
    print("\n".join("| " + " | ".join(line) + " |" for line in lines))
    write_result(args.out, machine() | {"table": lines, "accuracies": results})


if __name__ == "__main__":
    main()
