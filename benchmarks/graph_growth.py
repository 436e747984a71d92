"""How the time of a graph grows with the examples: CPU seconds on one thread, and the recall on 500 rows.

    python benchmarks/graph_growth.py --out benchmarks/results/graph_growth.json

The slope is that of log time over log count between the smallest and the largest count.
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path
from typing import Any

import torch
from jobs import machine, write_result
from neighbors import K, clustered

from semimetric.graph import graph_neighbors
from semimetric.graph.nearest import NearestVectors


def measure(count: int, width: int) -> dict[str, Any]:
    """Time of one graph, and how many of the exact neighbours it has."""
    points = clustered(count, width)
    began = time.process_time()
    found = graph_neighbors(points, K)
    seconds = time.process_time() - began
    asked = torch.arange(7, count, count // 500)  # other rows than those that the graph measured itself on
    exact = NearestVectors(points).search(points[asked], K + 1).rows[:, 1:]
    recall = (found[asked][:, :, None] == exact[:, None, :]).any(2).double().mean()
    return {"count": count, "width": width, "cpu_s": seconds, "recall": float(recall)}


def parser() -> argparse.ArgumentParser:
    """The command line."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--counts", type=int, nargs="+", default=[20_000, 60_000, 200_000])
    options.add_argument("--width", type=int, default=64)
    options.add_argument("--out", type=Path)
    return options


def main() -> None:
    """Measure, print, write."""
    args = parser().parse_args()
    torch.set_num_threads(1)
    rows = []
    for count in args.counts:
        rows.append(measure(count, args.width))
        print(rows[-1], flush=True)
    first, last = rows[0], rows[-1]
    slope = math.log(last["cpu_s"] / first["cpu_s"]) / math.log(last["count"] / first["count"])
    print(f"slope {slope:.2f}")
    write_result(args.out, machine() | {"k": K, "rows": rows, "slope": slope})


if __name__ == "__main__":
    main()
