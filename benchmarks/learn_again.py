"""A fit with more labels: from the beginning, or from the network of the run before (``fit --from``).

    python benchmarks/learn_again.py --data-dir DATA --out benchmarks/results/learn_again.json

500 images as rows of pixels: training images of MNIST, or scikit-learn's digits. One label of each class in 16 epochs,
then 25 and 50 random labels more, each step from the run before. Accuracy on 1,200 further training images; no reported
score is measured on them.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch
from jobs import machine, names, write_result
from sklearn.datasets import load_digits
from torch import Tensor

import semimetric as sm
from semimetric.data import load_dataset

SETS = ("mnist", "digits")
IMAGES, NEW, EPOCHS, MORE = 500, 1200, 16, (25, 50)
WAYS: dict[str, int | None] = {"from the beginning": EPOCHS, "from the network": None, "from the network, long": EPOCHS}
"""Epochs of each way; None are those of ``fit --from``."""


def images(name: str, data_dir: Path | None) -> tuple[Tensor, Tensor]:
    """Rows of pixels and their classes."""
    if name == "digits":
        pixels, classes = load_digits(return_X_y=True)
        return torch.tensor(pixels, dtype=torch.float32), torch.tensor(classes)
    train = load_dataset("mnist", data_dir).train
    return train.inputs.flatten(1), train.labels


def drawn(classes: Tensor, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Rows to learn from, in the order in which they get labels (one of each class first), that number, new rows."""
    order = torch.randperm(len(classes), generator=torch.Generator().manual_seed(1000 + seed))
    rows, new = order[:IMAGES], order[IMAGES : IMAGES + NEW]
    first = torch.tensor([int((classes[rows] == number).nonzero()[0]) for number in classes.unique()])
    rest = torch.arange(IMAGES)[~torch.isin(torch.arange(IMAGES), first)]
    return rows[torch.cat([first, rest])], first, new


def accuracies(pixels: Tensor, classes: Tensor, way: str, seed: int) -> list[float]:
    """Accuracy in per cent with the first labels, and after each number of further ones."""
    rows, first, new = drawn(classes, seed)
    found, before = [], None
    with tempfile.TemporaryDirectory() as place:
        for more in (0, *MORE):
            labels = classes[rows].clone()
            labels[len(first) + more :] = -1
            again = more > 0 and way != "from the beginning"
            epochs = WAYS[way] if again else EPOCHS
            model = sm.SemiMetric(random_state=seed, **({} if epochs is None else {"epochs": epochs}))
            model.fit(pixels[rows].numpy(), labels.numpy(), **({"from_run": before} if again else {}))
            found.append(100 * float(model.score(pixels[new].numpy(), classes[new].numpy())))
            before = Path(place) / str(more)
            sm.save(model, before)
    print(way, seed, [round(value, 1) for value in found], flush=True)
    return found


def measured(name: str, args: argparse.Namespace) -> dict[str, Any]:
    """All ways on one set: mean accuracies, and the mean difference to the first way with its standard error."""
    pixels, classes = images(name, args.data_dir)
    seeds = range(args.seeds)
    found = {way: [accuracies(pixels, classes, way, seed) for seed in seeds] for way in WAYS}
    whole = next(iter(found.values()))
    lines = {}
    for way, outcomes in found.items():
        gains = [[a - b for a, b in zip(mine, other, strict=True)] for mine, other in zip(outcomes, whole, strict=True)]
        lines[way] = {
            "accuracy": [statistics.mean(column) for column in zip(*outcomes, strict=True)],
            "difference": [statistics.mean(column) for column in zip(*gains, strict=True)],
            "standard_error": [statistics.stdev(column) / len(gains) ** 0.5 for column in zip(*gains, strict=True)],
            "seeds": outcomes,
        }
    return lines


def parser() -> argparse.ArgumentParser:
    """The command line."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--sets", type=names(SETS), default=[*SETS])
    options.add_argument("--data-dir", type=Path)
    options.add_argument("--seeds", type=int, default=5)
    options.add_argument("--out", type=Path)
    return options


def main() -> None:
    """Measure all, print and write."""
    args = parser().parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    facts = {"labels": ["one of each class", *(f"{more} more" for more in MORE)]}
    write_result(args.out, machine() | facts | {"sets": {name: measured(name, args) for name in args.sets}})


if __name__ == "__main__":
    main()
