"""Class posteriors with 10 and with 200 classes beside the earlier solver, in CPU seconds on one thread.

    python benchmarks/posteriors.py --out benchmarks/results/posteriors.json

The earlier solver took conjugate gradients in float64 on all classes at once. All take turns in one process; each time
is the least of its turns.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from jobs import machine, write_result
from neighbors import K, clustered, least_times
from torch import Tensor

from semimetric.graph import class_posteriors, nearest_neighbors
from semimetric.graph.posteriors import Graph, _normalized_graph, _posteriors, _product

LABELS = 5  # of each class


def earlier(neighbors: Tensor, labels: Tensor, gamma: float = 0.99, tolerance: float = 1e-6) -> Tensor:
    """Posteriors by conjugate gradients in float64 on all columns."""
    found = _normalized_graph(neighbors, None)
    graph = Graph(found.nodes.long(), found.starts.long(), found.entries)
    known = torch.zeros(len(labels), int(labels.max()) + 1, dtype=torch.float64)
    known[(labels >= 0).nonzero().flatten(), labels[labels >= 0]] = 1.0 / LABELS
    solution = torch.zeros_like(known)
    residual = direction = (1.0 - gamma) * known
    size = residual.square().sum(0)
    goal = tolerance**2 * size
    while bool((active := size > goal).any()):
        image = direction - gamma * _product(graph, direction)
        step = torch.where(active, size / (direction * image).sum(0), 0.0)
        solution = solution + step * direction
        residual = residual - step * image
        before, size = size, residual.square().sum(0)
        direction = residual + torch.where(active, size / before, 0.0) * direction
    reached = solution.clamp_min(0.0)
    return _posteriors(reached, 0.0)[0]


def some_labels(count: int, classes: int) -> Tensor:
    """Five random nodes of each class."""
    chosen = torch.randperm(count, generator=torch.Generator().manual_seed(0))[: classes * LABELS]
    return torch.full((count,), -1).index_copy(0, chosen, torch.arange(classes * LABELS) % classes)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--count", type=int, default=10_000)
    options.add_argument("--turns", type=int, default=5)
    options.add_argument("--out", type=Path)
    return options


def main() -> None:
    """Measure, print, write."""
    args = parser().parse_args()
    torch.set_num_threads(1)
    neighbors = nearest_neighbors(clustered(args.count, 64), K)
    few, many = some_labels(args.count, 10), some_labels(args.count, 200)
    times, found = least_times(
        {
            "10": lambda: class_posteriors(neighbors, few).shares,
            "200": lambda: class_posteriors(neighbors, many).shares,
            "10, earlier": lambda: earlier(neighbors, few),
            "200, earlier": lambda: earlier(neighbors, many),
        },
        args.turns,
    )
    exact = {"10": class_posteriors(neighbors, few, tolerance=1e-12).shares}
    exact["200"] = class_posteriors(neighbors, many, tolerance=1e-12).shares
    result = {
        "count": args.count,
        "seconds": times,
        "times_of_10_classes": times["200"] / times["10"],
        "faster_than_earlier": {name: times[f"{name}, earlier"] / times[name] for name in exact},
        "difference_from_earlier": {n: float((found[n] - found[f"{n}, earlier"]).abs().max()) for n in exact},
        "error": {name: float((found[name] - right).abs().max()) for name, right in exact.items()},
        "error_of_earlier": {n: float((found[f"{n}, earlier"] - right).abs().max()) for n, right in exact.items()},
    }
    print(result)
    write_result(args.out, machine() | result)


if __name__ == "__main__":
    main()
