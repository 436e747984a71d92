"""``SemiMetric().fit(X, y)`` on ten small tables beside what ten lines of scikit-learn give, on the same labels.

    python benchmarks/tables.py --out benchmarks/results/tables.json
    python benchmarks/tables.py --validate --seeds 5 --set epochs=20

Half of a table, stratified, is for training and half for testing; columns are standardised on the training half. All
see the same labels: 2, 5 or 20 of each class. A generated table is drawn anew for every seed.

With ``--validate`` nothing of a test half is seen: seeds are others, and the unlabelled training examples are what is
to be predicted. Whatever is chosen is chosen so.

TabPFN downloads its weights, so a support vector machine and a Gaussian process stand for it: strong with few labels.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jobs import changes, machine, names, write_result
from linear import Array, Task
from sklearn import datasets
from sklearn.gaussian_process import GaussianProcessClassifier
from sklearn.gaussian_process.kernels import RBF
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.neighbors import KNeighborsClassifier
from sklearn.preprocessing import StandardScaler
from sklearn.semi_supervised import LabelSpreading, SelfTrainingClassifier
from sklearn.svm import SVC

from semimetric import SemiMetric

FIRST_VALIDATION_SEED = 100
LABELS = (2, 5, 20)
MOST_ROWS = 1500

Table = tuple[Array, Array]
Predict = Callable[[Array], Array]


def digits(seed: int) -> Table:
    """Some of scikit-learn's digits, other ones for each seed."""
    features, classes = datasets.load_digits(return_X_y=True)
    kept = np.random.default_rng(seed).permutation(len(features))[:MOST_ROWS]
    return features[kept], classes[kept]


def moons(seed: int) -> Table:
    """Two interleaved half circles, and four columns of noise."""
    features, classes = datasets.make_moons(1000, noise=0.15, random_state=seed)
    return with_noise(features, 4, seed), classes


def blobs(seed: int) -> Table:
    """Five Gaussian classes in 8 dimensions whose deviations are from 1 to 5."""
    deviations = [1.0, 2.0, 3.0, 4.0, 5.0]
    found: Table = datasets.make_blobs([200] * 5, 8, cluster_std=deviations, random_state=seed)
    return found


def separable(seed: int) -> Table:
    """Three classes that a linear rule nearly tells apart; half of 20 columns say nothing."""
    found: Table = datasets.make_classification(
        1000, 20, n_informative=10, n_redundant=0, n_classes=3, n_clusters_per_class=1, class_sep=1.5, random_state=seed
    )
    return found


def tangled(seed: int) -> Table:
    """Four classes of two clusters each; 32 of 40 columns say nothing."""
    found: Table = datasets.make_classification(
        1000, 40, n_informative=8, n_redundant=0, n_classes=4, n_clusters_per_class=2, class_sep=1.5, random_state=seed
    )
    return found


def shells(seed: int) -> Table:
    """Three classes by their distance from the centre of one Gaussian in 4 dimensions."""
    found: Table = datasets.make_gaussian_quantiles(n_samples=1000, n_features=4, n_classes=3, random_state=seed)
    return found


def roll(seed: int) -> Table:
    """A swiss roll with four classes along it."""
    features, position = datasets.make_swiss_roll(1000, noise=0.5, random_state=seed)
    return features, np.searchsorted(np.quantile(position, [0.25, 0.5, 0.75]), position)


def with_noise(features: Array, columns: int, seed: int) -> Array:
    """The features with columns of noise as large as they are."""
    noise = np.random.default_rng(seed).normal(size=(len(features), columns)) * features.std()
    return np.hstack([features, noise])


TABLES: dict[str, Callable[[int], Table]] = {
    "iris": lambda seed: datasets.load_iris(return_X_y=True),
    "wine": lambda seed: datasets.load_wine(return_X_y=True),
    "breast_cancer": lambda seed: datasets.load_breast_cancer(return_X_y=True),
    "digits": digits,
    "moons": moons,
    "blobs": blobs,
    "separable": separable,
    "tangled": tangled,
    "shells": shells,
    "roll": roll,
}

SUPERVISED: dict[str, Callable[[Array], Any]] = {
    "logistic": lambda known: LogisticRegression(max_iter=1000),
    "1-NN": lambda known: KNeighborsClassifier(1),
    "5-NN": lambda known: KNeighborsClassifier(min(5, len(known))),
    "SVC": lambda known: SVC(),
    "GP": lambda known: GaussianProcessClassifier(1.0 * RBF(known.shape[1] ** 0.5)),
}
"""Models of the labelled examples (n, d)."""

SEMI_SUPERVISED: dict[str, Callable[[Array], Any]] = {
    "spreading knn": lambda train: LabelSpreading(kernel="knn", n_neighbors=7),
    "spreading rbf": lambda train: LabelSpreading(kernel="rbf", gamma=20),
    "spreading 1/d": lambda train: LabelSpreading(kernel="rbf", gamma=1 / train.shape[1]),
    "self-training": lambda train: SelfTrainingClassifier(LogisticRegression(max_iter=1000)),
}
"""Models of all training examples (N, d)."""

OURS = "consensus"
Scores = dict[str, float]


def task_of(name: str, count: int, seed: int, validate: bool) -> Task:
    """``count`` labels of each class of the training half; the test half is to be found, or the rest of that half."""
    features, classes = TABLES[name](seed)
    train, test, known, wanted = train_test_split(features, classes, test_size=0.5, stratify=classes, random_state=seed)
    scaler = StandardScaler().fit(train)
    train, test = scaler.transform(train), scaler.transform(test)
    random = np.random.default_rng(seed)
    labels = np.full(len(known), -1)
    for number in np.unique(known):
        labels[random.choice(np.flatnonzero(known == number), count, replace=False)] = number
    if validate:
        return Task(train, labels, train[labels < 0], known[labels < 0])
    return Task(train, labels, test, wanted)


def baselines(task: Task) -> dict[str, Predict]:
    """Predictions of scikit-learn's models."""
    rows = task.labels >= 0
    known, labels = task.train[rows], task.labels[rows]
    supervised = {name: build(known).fit(known, labels) for name, build in SUPERVISED.items()}
    semi = {name: build(task.train).fit(task.train, task.labels) for name, build in SEMI_SUPERVISED.items()}
    return {name: model.predict for name, model in (supervised | semi).items()}


def consensus(task: Task, seed: int, settings: dict[str, Any]) -> SemiMetric:
    """What a user gets."""
    return SemiMetric(random_state=seed, settings=settings or None, device="cpu").fit(task.train, task.labels)


def accuracies(task: Task, seed: int, settings: dict[str, Any]) -> Scores:
    """Accuracy of all on one split, in per cent, and the seconds that our fit takes."""
    scores = {name: accuracy(predict, task) for name, predict in baselines(task).items()}
    began = time.perf_counter()
    model = consensus(task, seed, settings)
    scores["seconds"] = time.perf_counter() - began
    scores[OURS] = accuracy(model.predict, task)
    return scores


def accuracy(predict: Predict, task: Task) -> float:
    """Accuracy in per cent."""
    return 100 * float((predict(task.test) == task.wanted).mean())


def difference(runs: list[Scores], other: str) -> tuple[float, float]:
    """Mean of our accuracy less that of another over the same splits, and its standard error."""
    differences = [scores[OURS] - scores[other] for scores in runs]
    error = statistics.stdev(differences) / len(differences) ** 0.5 if len(differences) > 1 else float("nan")
    return statistics.mean(differences), error


def line(name: str, count: int, runs: list[Scores]) -> list[str]:
    """Means of all, and our difference to logistic regression and to the best baseline, with standard errors."""
    ways = (*SUPERVISED, *SEMI_SUPERVISED)
    means = {way: statistics.mean(scores[way] for scores in runs) for way in (OURS, *ways)}
    best = max(ways, key=means.__getitem__)
    gaps = ["{:+.1f} ± {:.1f}".format(*difference(runs, other)) for other in ("logistic", best)]
    return [name, str(count), *(f"{mean:.1f}" for mean in means.values()), *gaps, best]


def table(results: dict[str, dict[int, list[Scores]]]) -> list[list[str]]:
    """A line for each table and number of labels."""
    head = ["table", "labels", OURS, *SUPERVISED, *SEMI_SUPERVISED, "to logistic", "to best", "best"]
    return [head, *(line(name, count, runs) for name, found in results.items() for count, runs in found.items())]


def measure(args: argparse.Namespace) -> dict[str, dict[int, list[Scores]]]:
    """All scores by table, labels and seed; how far it is goes to standard error."""
    first = FIRST_VALIDATION_SEED if args.validate else 0
    settings = changes(args.set, "")
    results: dict[str, dict[int, list[Scores]]] = {}
    for name in args.tables:
        results[name] = {count: [] for count in args.labels}
        for seed in range(first, first + args.seeds):
            for count in args.labels:
                scores = accuracies(task_of(name, count, seed, args.validate), seed, settings)
                results[name][count].append(scores)
                shown = f"{scores[OURS]:.1f}, logistic {scores['logistic']:.1f}, {scores['seconds']:.1f} s"
                print(f"{name} seed {seed}, {count} labels: {shown}", file=sys.stderr, flush=True)
    return results


def parser() -> argparse.ArgumentParser:
    """The command line."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--seeds", type=int, default=10)
    options.add_argument("--tables", type=names(TABLES), default=list(TABLES), help="names, with commas between")
    options.add_argument("--labels", type=int, nargs="+", default=list(LABELS), help="of each class")
    options.add_argument("--validate", action="store_true", help="other splits, without their test halves")
    options.add_argument("--set", action="append", default=[], help="NAME=VALUE of consensus or its training")
    options.add_argument("--out", type=Path)
    return options


def main() -> None:
    """Measure all, write the JSON, print a table."""
    args = parser().parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    results = measure(args)
    lines = table(results)
    write_result(args.out, machine() | {"table": lines, "accuracies": results})
    rule = ["---"] * len(lines[0])
    print("\n".join("| " + " | ".join(cells) + " |" for cells in [lines[0], rule, *lines[1:]]))


if __name__ == "__main__":
    main()
