"""Recall of the approximate graph on seven kinds of data. CPU seconds on one thread.

    python benchmarks/graph_recall.py --data-dir DATA --out benchmarks/results/graph_recall.json

| data | rows |
|---|---|
| mnist | pixels of MNIST; left out without ``--data-dir`` |
| digits | scikit-learn's digits, ten times each, with noise of a tenth of a grey level's range |
| line | a noisy curve in 64 dimensions |
| gaussian | a single Gaussian in 16 dimensions |
| uniform | a cube of 64 dimensions: no structure, so that the graph must fall back on exact search |
| copies | 2,000 points, ten copies of each |
| skewed | groups whose sizes fall as 1 / rank |

Recall is that of all rows. It counts a neighbour as found if it is no farther than the k-th exact one, so that copies
may stand for each other.
"""

from __future__ import annotations

import argparse
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from jobs import machine, write_result
from neighbors import K
from sklearn.datasets import load_digits
from torch import Tensor

from semimetric.graph import graph_neighbors
from semimetric.graph.nearest import NearestVectors

COUNTED = 500  # rows whose neighbours are counted at a time
Draw = Callable[[int, torch.Generator], Tensor]


def digits(count: int, generator: torch.Generator) -> Tensor:
    """Noisy copies of real digits."""
    rows = torch.as_tensor(load_digits().data, dtype=torch.float32) / 16
    return rows[torch.arange(count) % len(rows)] + 0.1 * torch.randn(count, 64, generator=generator)


def line(count: int, generator: torch.Generator) -> Tensor:
    """A curve of 64 harmonics."""
    place = torch.rand(count, 1, generator=generator)
    return (place * torch.arange(1.0, 65.0)).sin() + 0.01 * torch.randn(count, 64, generator=generator)


def skewed(count: int, generator: torch.Generator) -> Tensor:
    """Groups of very different sizes."""
    groups = torch.multinomial(1 / torch.arange(1.0, 301.0), count, replacement=True, generator=generator)
    return 2 * torch.randn(300, 64, generator=generator)[groups] + torch.randn(count, 64, generator=generator)


KINDS: dict[str, Draw] = {
    "digits": digits,
    "line": line,
    "gaussian": lambda count, generator: torch.randn(count, 16, generator=generator),
    "uniform": lambda count, generator: torch.rand(count, 64, generator=generator),
    "copies": lambda count, generator: torch.randn(2_000, 64, generator=generator)[torch.arange(count) % 2_000],
    "skewed": skewed,
}


def mnist(data_dir: Path, count: int) -> Tensor:
    """Pixels of the training images."""
    from semimetric.data import load_dataset

    return load_dataset("mnist", data_dir).train.inputs.flatten(1)[:count].float()


def measure(kind: str, points: Tensor) -> dict[str, Any]:
    """Time of one graph, what its log says, and the recall of all rows."""
    said: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(record.getMessage())

    logger, handler = logging.getLogger("semimetric.graph.approximate"), Keep()
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    began = time.process_time()
    found = graph_neighbors(points, K)
    seconds = time.process_time() - began
    logger.removeHandler(handler)
    asked = torch.arange(len(points))
    limits = NearestVectors(points).search(points, K, asked).distances[:, -1:]
    right = []
    for rows in asked.split(COUNTED):
        reached = (points[found[rows]].double() - points[rows][:, None].double()).square().sum(2).sqrt()
        right.append(reached <= limits[rows] * (1 + 1e-6))
    recall = float(torch.cat(right).double().mean())
    return {"kind": kind, "size": list(points.shape), "cpu_s": seconds, "recall": recall, "log": said[-1]}


def parser() -> argparse.ArgumentParser:
    """The command line."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--count", type=int, default=20_000)
    options.add_argument("--data-dir", type=Path)
    options.add_argument("--out", type=Path)
    return options


def main() -> None:
    """Measure, print, write."""
    args = parser().parse_args()
    torch.set_num_threads(1)
    rows = []
    for kind in (["mnist"] if args.data_dir else []) + list(KINDS):
        draw = torch.Generator().manual_seed(0)
        points = mnist(args.data_dir, args.count) if kind == "mnist" else KINDS[kind](args.count, draw)
        rows.append(measure(kind, points))
        print(rows[-1], flush=True)
        write_result(args.out, machine() | {"k": K, "rows": rows})


if __name__ == "__main__":
    main()
