"""Affinities and triplets of 9,100 nodes beside numpy's inverse, and of 100,000 nodes. CPU seconds.

    python benchmarks/affinities.py --out benchmarks/results/affinities.json
    python benchmarks/affinities.py --large 100000 --threads 2 --out affinities_large.json
    python benchmarks/affinities.py --large 100000 --blocks 20 --out benchmarks/results/affinities_large.json

Two mixtures: ``clusters`` has 100 groups that few edges connect, ``one`` is a single Gaussian in 16 dimensions. The
error bound is that of the solver for an entry of the walk matrix. Memory is the peak of the process.
"""

from __future__ import annotations

import argparse
import logging
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jobs import machine, write_result
from neighbors import K, clustered, least_times
from torch import Tensor

from semimetric.graph import affinities as module
from semimetric.graph import graph_neighbors, nearest_neighbors, propagate_affinities
from semimetric.graph.edge_walk import EdgeWalk
from semimetric.mining import mine_triplets

LABELS, CLASSES, GAMMA = 100, 10, 0.99


def points_of(kind: str, count: int) -> Tensor:
    """The mixture of this name."""
    return clustered(count, 64) if kind == "clusters" else torch.randn(count, 16, generator=torch.Generator())


def by_inverse(neighbors: Tensor, labels: Tensor) -> Tensor:
    """Triplets from numpy's inverse, as the definition of the affinities reads."""
    count = len(neighbors)
    system = np.eye(count)
    system[np.arange(count)[:, None], neighbors.numpy()] = -GAMMA / K
    known = np.flatnonzero(labels.numpy() >= 0)
    walk = (1 - GAMMA) * np.linalg.inv(system)
    same = labels.numpy()[known][:, None] == labels.numpy()[known]
    walk[:, known] = walk[:, known] @ np.where(same, 1.0, -1.0)
    own = np.arange(count)[:, None]
    weights = (walk[own, neighbors.numpy()] + walk[neighbors.numpy(), own]) / 2
    return mine_triplets(neighbors, torch.from_numpy(weights))


def some_labels(count: int) -> Tensor:
    """A hundred labels of ten classes."""
    return torch.full((count,), -1).index_copy(0, torch.arange(LABELS), torch.arange(LABELS) % CLASSES)


def compared(kind: str, count: int, turns: int) -> dict[str, Any]:
    """Both ways in turn, and the share of equal triplets."""
    neighbors, labels = nearest_neighbors(points_of(kind, count), K), some_labels(count)
    times, found = least_times(
        {
            "semimetric": lambda: mine_triplets(neighbors, propagate_affinities(neighbors, labels, GAMMA)),
            "numpy": lambda: by_inverse(neighbors, labels),
        },
        turns,
    )
    same = (found["semimetric"] == found["numpy"]).all(1).double().mean()
    ratio = times["numpy"] / times["semimetric"]
    return {"kind": kind, "count": count, "seconds": times, "faster": ratio, "same_triplets": float(same)}


@contextmanager
def told_bounds() -> Iterator[list[float]]:
    """Collect the error bounds that the log tells."""
    bounds: list[float] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            bounds.append(float(record.args[1]))  # type: ignore[index, arg-type]

    logger, handler = logging.getLogger(module.__name__), Keep()
    logger.addHandler(handler)
    before, _ = logger.level, logger.setLevel(logging.INFO)
    try:
        yield bounds
    finally:
        logger.setLevel(before)
        logger.removeHandler(handler)


def large(kind: str, count: int) -> dict[str, Any]:
    """Time and memory of a graph too large for an inverse."""
    neighbors, labels = graph_neighbors(points_of(kind, count), K), some_labels(count)
    began, cpu = time.perf_counter(), time.process_time()
    with told_bounds() as bounds:
        triplets = mine_triplets(neighbors, propagate_affinities(neighbors, labels, GAMMA))
    return {
        "kind": kind,
        "count": count,
        "wall_s": time.perf_counter() - began,
        "cpu_s": time.process_time() - cpu,
        "triplets": len(triplets),
        "error_bound": max(bounds),
        "peak_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
    }


def sampled(kind: str, count: int, blocks: int) -> dict[str, Any]:
    """CPU seconds of all columns from those of some blocks of columns, spread over the nodes."""
    neighbors = graph_neighbors(points_of(kind, count), K)
    began = time.process_time()
    walk = EdgeWalk(neighbors, GAMMA)
    modes = time.process_time() - began
    starts = range(0, count - walk.width, max(1, (count - walk.width) // blocks))
    began = time.process_time()
    found = [walk.columns(start, start + walk.width) for start in starts]
    each = (time.process_time() - began) / (len(found) * walk.width)
    return {
        "kind": kind,
        "count": count,
        "columns": len(found) * walk.width,
        "modes_cpu_s": modes,
        "ms_per_column": 1000 * each,
        "all_columns_cpu_s": modes + each * count,
        "error_bound": max(block.bound for block in found),
        "peak_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
    }


def parser() -> argparse.ArgumentParser:
    """The command line."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--count", type=int, default=9_100)
    options.add_argument("--large", type=int)
    options.add_argument("--blocks", type=int, help="Measure so many blocks of columns of the large graph alone.")
    options.add_argument("--kinds", nargs="+", default=["clusters", "one"], choices=["clusters", "one"])
    options.add_argument("--turns", type=int, default=1)
    options.add_argument("--threads", type=int, default=1)
    options.add_argument("--out", type=Path)
    return options


def main() -> None:
    """Measure, print, write."""
    args = parser().parse_args()
    torch.set_num_threads(args.threads)
    rows = []
    for kind in args.kinds:
        if args.large and args.blocks:
            rows.append(sampled(kind, args.large, args.blocks))
        else:
            rows.append(large(kind, args.large) if args.large else compared(kind, args.count, args.turns))
        print(rows[-1], flush=True)
        write_result(args.out, machine() | {"threads": args.threads, "rows": rows})


if __name__ == "__main__":
    main()
