"""The three indexes on clustered embeddings: time to build, time per query, recall of the ten nearest. One thread.

    python benchmarks/search.py --out benchmarks/results/search.json

Recall is against exact search. Each index has a process of its own.
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jobs import machine, write_result

QUERIES, K = 1000, 10


def clustered(count: int, width: int, spread: float, seed: int = 0) -> tuple[Any, Any]:
    """Unit vectors around a thousand centres, stored ones and queries."""
    random = np.random.default_rng(seed)
    centres = random.normal(size=(1000, width))
    centres /= np.linalg.norm(centres, axis=1, keepdims=True)
    points = centres[random.integers(1000, size=count + QUERIES)] + spread * random.normal(
        size=(count + QUERIES, width)
    )
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    return points[:count].astype(np.float32), points[count:].astype(np.float32)


def measure(kind: str, count: int, width: int, spread: float) -> dict[str, Any]:
    """Build one index and ask it."""
    import faiss

    from semimetric.search import ExactIndex, FaissIndex, MilvusIndex

    torch.set_num_threads(1)
    faiss.omp_set_num_threads(1)
    stored, queries = clustered(count, width, spread)
    wanted = ExactIndex(stored).search(queries, K).rows
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        if kind == "exact":
            index: Any = ExactIndex(stored)
        elif kind == "milvus lite":
            index = MilvusIndex(str(Path(folder) / "run.db"), "benchmark", width)
            index.load(stored)
        else:
            index = FaissIndex.build(stored, kind)
        built = time.perf_counter() - began
        began = time.perf_counter()
        found = index.search(queries, K).rows
        together = (time.perf_counter() - began) / QUERIES
        began = time.perf_counter()
        for query in queries[:20]:
            index.search(query[None], K)
        alone = (time.perf_counter() - began) / 20
        if kind == "milvus lite":
            index.close()
    hits = (found[:, :, None] == wanted[:, None, :]).any(2).double().mean()
    return {
        "index": kind,
        "spread": spread,
        "build_s": built,
        "query_ms_of_1000": 1000 * together,
        "query_ms_alone": 1000 * alone,
        "recall@10": float(hits),
    }


def parser() -> argparse.ArgumentParser:
    """The command line."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--count", type=int, default=100_000)
    options.add_argument("--width", type=int, default=64)
    options.add_argument("--out", type=Path)
    return options


def main() -> None:
    """Measure all indexes, print a line for each, write the JSON."""
    args = parser().parse_args()
    rows = []
    for kind, spread in (("exact", 0.1), ("flat", 0.1), ("hnsw", 0.1), ("hnsw", 0.35), ("milvus lite", 0.1)):
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            rows.append(pool.apply(measure, (kind, args.count, args.width, spread)))
        print(" ".join(f"{name} {value:.4g}" if name != "index" else str(value) for name, value in rows[-1].items()))
        write_result(args.out, machine() | {"count": args.count, "width": args.width, "rows": rows})


if __name__ == "__main__":
    main()
