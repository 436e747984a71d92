"""Labels propagated over a graph of raw pixels with few labels per class: our posteriors beside Poisson learning.

    python benchmarks/few_labels.py --data-dir DATA --out benchmarks/results/few_labels.json

Nothing is trained, and nothing of a test set is seen: 8,000 training images (all digits), 64 principal components, the
graph of ``cosine_posteriors``, random labels. Accuracy on the unlabelled images. ``balanced`` are our posteriors
divided by their mean over all images. ``poisson`` solves L u = sum over labels of (y - mean y) (Calder, Cook, Thorpe
and Slepcev, ICML 2020).
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jobs import machine, names, write_result
from scipy import sparse
from scipy.sparse.linalg import cg
from torch import Tensor

from semimetric.data import load_dataset
from semimetric.graph import class_posteriors
from semimetric.graph.approximate import graph_neighbors
from semimetric.graph.edges import symmetric_edges
from semimetric.graph.posteriors import PRIOR

SETS = ("digits", "mnist", "fashion-mnist")
IMAGES, COMPONENTS, NEIGHBOURS = 8000, 64, 10
GAMMAS = (0.95, 0.99, 0.999)


def unit_points(dataset: str, data_dir: Path | None) -> tuple[Tensor, Tensor]:
    """Unit vectors (N, 64) of some training images, and their classes."""
    train = load_dataset(dataset, data_dir).train
    rows = torch.randperm(len(train), generator=torch.Generator().manual_seed(5))[:IMAGES]
    pixels = train.inputs[rows].flatten(1).double()
    pixels = pixels - pixels.mean(0)
    directions = torch.linalg.eigh(pixels.T @ pixels).eigenvectors[:, -COMPONENTS:]
    return torch.nn.functional.normalize(pixels @ directions), train.labels[rows]


class Propagation:
    """The ways to propagate labels, on one graph."""

    def __init__(self, points: Tensor) -> None:
        self.neighbors = graph_neighbors(points, NEIGHBOURS)
        cosines = torch.stack([(points * points[column]).sum(1) for column in self.neighbors.T], dim=1)
        self.weights = cosines.clamp_min(0.0) ** 3
        pairs, weights = symmetric_edges(self.neighbors, self.weights)
        both = torch.cat([pairs, pairs.flip(1)]).numpy()
        count = len(points)
        graph = sparse.coo_matrix((weights.repeat(2).numpy(), both.T), (count, count)).tocsr()
        self.degrees = np.maximum(np.asarray(graph.sum(1)).ravel(), 1e-12)
        roots = sparse.diags(self.degrees**-0.5)
        self.laplacian = sparse.eye(count) - roots @ graph @ roots

    def poisson_values(self, labels: Tensor, classes: int) -> np.ndarray:
        """Values (N, C) of Poisson learning; the normalised Laplacian has the same solution up to the degrees."""
        known = (labels >= 0).nonzero().flatten().numpy()
        given = np.eye(classes)[labels[known].numpy()]
        source = np.zeros((len(labels), classes))
        source[known] = given - given.mean(0)
        roots = self.degrees**-0.5
        found = [roots * cg(self.laplacian, roots * column, rtol=1e-6, maxiter=2000)[0] for column in source.T]
        values = np.stack(found, axis=1)
        return values - (self.degrees[:, None] * values).sum(0) / self.degrees.sum()

    def poisson(self, labels: Tensor, classes: int) -> Tensor:
        """Predicted classes by Poisson learning."""
        return torch.from_numpy(self.poisson_values(labels, classes).argmax(1))

    def predictions(self, labels: Tensor, classes: int) -> dict[str, Tensor]:
        """Predicted classes (N,) of every way."""
        shares = {
            gamma: class_posteriors(self.neighbors, labels, self.weights, gamma, prior=PRIOR).shares for gamma in GAMMAS
        }
        found = {f"ours, gamma {gamma}": values.argmax(1) for gamma, values in shares.items()}
        balanced = shares[0.99] / shares[0.99].mean(0)
        return found | {"balanced": balanced.argmax(1), "poisson": self.poisson(labels, classes)}


def drawn_labels(classes: Tensor, count: int, seed: int) -> Tensor:
    """``count`` random labels of each class, -1 elsewhere."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(classes), generator=generator)
    labels = torch.full_like(classes, -1)
    for number in torch.unique(classes):
        rows = order[classes[order] == number][:count]
        labels[rows] = number
    return labels


def measured(dataset: str, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Mean accuracy and its standard error, for each number of labels."""
    points, classes = unit_points(dataset, args.data_dir)
    ways, lines = Propagation(points), []
    for count in args.labels:
        accuracies: dict[str, list[float]] = {}
        for seed in range(args.seeds):
            labels = drawn_labels(classes, count, seed)
            free = labels < 0
            for name, found in ways.predictions(labels, int(classes.max()) + 1).items():
                accuracies.setdefault(name, []).append(100 * float((found == classes)[free].double().mean()))
        means = {name: f"{np.mean(v):.1f} ± {np.std(v, ddof=1) / len(v) ** 0.5:.1f}" for name, v in accuracies.items()}
        print(dataset, count, means, flush=True)
        lines.append({"dataset": dataset, "labels_per_class": count, "accuracy": means, "draws": accuracies})
    return lines


def parser() -> argparse.ArgumentParser:
    """The command line."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--datasets", type=names(SETS), default=[*SETS])
    options.add_argument("--data-dir", type=Path)
    options.add_argument("--labels", type=int, nargs="+", default=[1, 2, 5, 10], help="of each class")
    options.add_argument("--seeds", type=int, default=20)
    options.add_argument("--out", type=Path)
    return options


def main() -> None:
    """Measure all, print and write."""
    args = parser().parse_args()
    torch.set_num_threads(1)
    lines = [line for dataset in args.datasets for line in measured(dataset, args)]
    write_result(args.out, machine() | {"lines": lines})


if __name__ == "__main__":
    main()
