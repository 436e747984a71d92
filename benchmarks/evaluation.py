"""``evaluate`` beside pytorch-metric-learning's calculator, and k-means beside its earlier form, on one thread.

    python benchmarks/evaluation.py --out benchmarks/results/evaluation.json

CPU seconds. Both give NMI and Recall@1 of 10,000 x 64 embeddings in 10, 100 and 1,000 classes; ours also Recall@2, 4
and 8. The earlier k-means took ten restarts of k-means++ to the end. ``inertia`` is ours over the earlier one.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from jobs import machine, write_result
from neighbors import least_times
from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator
from torch import Tensor

from semimetric.evaluation import evaluate
from semimetric.graph.clustering import initial_centres, kmeans, lloyd


def embeddings(count: int, width: int, classes: int) -> tuple[Tensor, Tensor]:
    """Overlapping groups around a centre for each class."""
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(classes, width, generator=generator)
    labels = torch.arange(count) % classes
    return centres[labels] + 1.5 * torch.randn(count, width, generator=generator), labels


def earlier_inertia(points: Tensor, clusters: int, seed: int = 0) -> float:
    """Ten restarts to the end."""
    candidates = 2 + int(torch.tensor(clusters).log())
    draws = torch.rand(10, clusters, candidates, generator=torch.Generator().manual_seed(seed))
    centred = points - points.mean(0)
    limit = 1e-4 * float(centred.var(0, correction=0).mean())
    return min(lloyd(centred, initial_centres(centred, draw[None])[0], 100, limit).inertia for draw in draws)


def measure(count: int, width: int, classes: int, turns: int, with_earlier: bool) -> dict[str, Any]:
    """One line of the table."""
    points, labels = embeddings(count, width, classes)
    calculator = AccuracyCalculator(include=("NMI", "precision_at_1"), k=1, device=torch.device("cpu"))
    found: dict[str, dict[str, float]] = {}

    def ours() -> Tensor:
        found["semimetric"] = evaluate(points, labels)
        return points

    def theirs() -> Tensor:
        found["pytorch-metric-learning"] = calculator.get_accuracy(points, labels)
        return points

    times, _ = least_times({"semimetric": ours, "pytorch-metric-learning": theirs}, turns)
    row: dict[str, Any] = {"count": count, "width": width, "classes": classes, "seconds": times, "scores": found}
    row["times"] = times["semimetric"] / times["pytorch-metric-learning"]
    if with_earlier:
        row["inertia"] = kmeans(points, classes).inertia / earlier_inertia(points, classes)
    return row


def parser() -> argparse.ArgumentParser:
    """The command line."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--count", type=int, default=10_000)
    options.add_argument("--width", type=int, default=64)
    options.add_argument("--classes", type=int, nargs="+", default=[10, 100, 1000])
    options.add_argument("--turns", type=int, default=3)
    options.add_argument("--without-earlier", action="store_true", help="Do not compute the earlier inertia.")
    options.add_argument("--out", type=Path)
    return options


def main() -> None:
    """Measure, print, write."""
    args = parser().parse_args()
    torch.set_num_threads(1)
    rows = []
    for classes in args.classes:
        rows.append(measure(args.count, args.width, classes, args.turns, not args.without_earlier))
        print(rows[-1], flush=True)
        write_result(args.out, machine() | {"rows": rows})


if __name__ == "__main__":
    main()
