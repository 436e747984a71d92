"""Exact neighbours beside scikit-learn's brute force and the earlier float64 products, in CPU seconds on one thread.

    python benchmarks/neighbors.py --out benchmarks/results/neighbors.json

All take turns in one process; each time is the least of its turns. ``same_lists`` is the share of rows whose list
equals that of the earlier search.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from jobs import machine, write_result
from sklearn.neighbors import NearestNeighbors
from threadpoolctl import threadpool_limits
from torch import Tensor

from semimetric.graph import nearest_neighbors

K = 10


def clustered(count: int, width: int, seed: int = 0) -> Tensor:
    """Points around a hundred centres, in float32."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(100, width, generator=generator)
    return centres[torch.randint(100, (count,), generator=generator)] + torch.randn(count, width, generator=generator)


def by_products(features: Tensor, k: int) -> Tensor:
    """The earlier search: float64 products in blocks of 2^25 entries, and a test for ties over all of them."""
    points = features.double()
    points = points - points.mean(0)
    norms = points.square().sum(1)
    found = []
    for block, start in zip(
        points.split(rows := max(1, (1 << 25) // len(points))), range(0, len(points), rows), strict=True
    ):
        distances = torch.addmm(norms[None, :], block, points.T, alpha=-2.0)
        own = torch.arange(len(block))
        distances[own, own + start] = torch.inf
        values, columns = distances.topk(k, dim=1, largest=False)
        crowded = (distances <= values[:, -1:]).sum(1) > k
        if bool(crowded.any()):
            ordered = distances[crowded].sort(dim=1, stable=True)
            values[crowded], columns[crowded] = ordered.values[:, :k], ordered.indices[:, :k]
        columns, by_column = columns.sort(dim=1)
        found.append(columns.gather(1, values.gather(1, by_column).sort(dim=1, stable=True).indices))
    return torch.cat(found)


def by_scikit_learn(features: Tensor, k: int) -> Tensor:
    """Brute force of scikit-learn."""
    model = NearestNeighbors(n_neighbors=k, algorithm="brute", n_jobs=1).fit(features.numpy())
    return torch.from_numpy(model.kneighbors(return_distance=False))


def least_times(searches: dict[str, Callable[[], Tensor]], turns: int) -> tuple[dict[str, float], dict[str, Tensor]]:
    """Least CPU seconds of each search over ``turns`` turns, and what it found."""
    times = dict.fromkeys(searches, float("inf"))
    found = {}
    for _ in range(turns):
        for name, search in searches.items():
            began = time.process_time()
            found[name] = search()
            times[name] = min(times[name], time.process_time() - began)
    return times, found


def measure(count: int, width: int, dtype: torch.dtype, turns: int) -> dict[str, Any]:
    """One line of the table."""
    points = clustered(count, width).to(dtype)
    times, found = least_times(
        {
            "semimetric": lambda: nearest_neighbors(points, K),
            "scikit-learn": lambda: by_scikit_learn(points, K),
            "earlier": lambda: by_products(points, K),
        },
        turns,
    )
    return {
        "count": count,
        "width": width,
        "dtype": str(dtype),
        "seconds": times,
        "times_scikit_learn": times["semimetric"] / times["scikit-learn"],
        "faster_than_earlier": times["earlier"] / times["semimetric"],
        "same_lists": float((found["semimetric"] == found["earlier"]).all(1).double().mean()),
    }


def parser() -> argparse.ArgumentParser:
    """The command line."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--counts", type=int, nargs="+", default=[5_000, 20_000])
    options.add_argument("--width", type=int, default=64)
    options.add_argument("--turns", type=int, default=3)
    options.add_argument("--out", type=Path)
    return options


def main() -> None:
    """Measure, print, write."""
    args = parser().parse_args()
    torch.set_num_threads(1)
    rows = []
    with threadpool_limits(1):
        for count in args.counts:
            for dtype in (torch.float32, torch.float64):
                rows.append(measure(count, args.width, dtype, args.turns))
                print(rows[-1])
                write_result(args.out, machine() | {"k": K, "rows": rows})


if __name__ == "__main__":
    main()
