"""One exact query among many vectors beside FAISS's flat index: CPU milliseconds on one thread.

    python benchmarks/one_query.py --out benchmarks/results/one_query.json

Both take turns in one process, one query at a time; each time is the median of its queries. ``same`` is the share of
queries with the same ten rows.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import faiss
import torch
from jobs import machine, write_result
from search import K, clustered

from semimetric.search import ExactIndex


def milliseconds(search: Callable[[], None]) -> float:
    """CPU time of one search."""
    began = time.process_time()
    search()
    return 1000 * (time.process_time() - began)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--count", type=int, default=100_000)
    options.add_argument("--width", type=int, default=64)
    options.add_argument("--queries", type=int, default=200)
    options.add_argument("--out", type=Path)
    return options


def main() -> None:
    """Measure, print, write."""
    args = parser().parse_args()
    torch.set_num_threads(1)
    faiss.omp_set_num_threads(1)
    stored, queries = clustered(args.count, args.width, 0.1)
    ours, theirs = ExactIndex(stored), faiss.IndexFlatL2(args.width)
    theirs.add(stored)
    times: dict[str, list[float]] = {"semimetric": [], "faiss flat": []}
    for query in queries[: args.queries]:
        times["semimetric"].append(milliseconds(lambda query=query: ours.search(query[None], K)))
        times["faiss flat"].append(milliseconds(lambda query=query: theirs.search(query[None], K)))
    asked = queries[: args.queries]
    found, wanted = ours.search(asked, K).rows, torch.from_numpy(theirs.search(asked, K)[1])
    medians = {name: statistics.median(all_times) for name, all_times in times.items()}
    result = {
        "count": args.count,
        "width": args.width,
        "queries": args.queries,
        "milliseconds": medians,
        "times": medians["semimetric"] / medians["faiss flat"],
        "same": float((found.sort(1).values == wanted.sort(1).values).all(1).double().mean()),
    }
    print(result)
    write_result(args.out, machine() | result)


if __name__ == "__main__":
    main()
