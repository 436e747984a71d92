"""A million examples on one GPU: time, peak memory, and how good what was found is.

    PYTHONPATH=. python benchmarks/million.py --data-dir DATA --out benchmarks/results/million.json
    PYTHONPATH=. python benchmarks/million.py --parts affinities --limit 540 \
        --out benchmarks/results/million_affinities.json
    PYTHONPATH=. python benchmarks/million.py --count 20000 --device cpu --parts graph affinities exact evaluate

| part | what | bar on one H200 |
|---|---|---|
| graph | graph and posteriors of 10^6 x 128, 100 classes | 15 s, 40 GiB |
| affinities | affinities and triplets of a tenth and of all nodes, with the bound on their error | 10 min |
| mnist | ``consensus`` on MNIST, from loading to scoring | 40 s |
| evaluate | NMI and Recall@K of 10^6 x 64, 100 classes | 2 GiB |
| exact | exact neighbours of 10^6 x 128: float32 preselects, float64 decides | |

A part that is not done after ``--limit`` seconds (60 by default) is stopped. Affinities are not started if a sample of
columns says that all would take longer; the sample and the estimate are told instead. Recall is that of 500 rows
against exact search. Memory is the peak of what torch allocated on the GPU, the input included; on a CPU, that of the
process. The first command takes at most 4 minutes, the second at most 10. Parts are written as they are done.
"""

from __future__ import annotations

import argparse
import os
import resource
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from affinities import GAMMA, points_of, some_labels, told_bounds
from jobs import Job, machine, run_job, write_result
from neighbors import K, clustered
from torch import Tensor

from semimetric.evaluation import evaluate
from semimetric.graph import class_posteriors, graph_neighbors, nearest_neighbors, propagate_affinities
from semimetric.graph.edge_walk import EdgeWalk
from semimetric.graph.nearest import NearestVectors
from semimetric.mining import mine_triplets

WIDTH, SCORED_WIDTH, CLASSES, LABELS, SAMPLE = 128, 64, 100, 10, 500
PARTS = ("graph", "exact", "evaluate", "mnist", "affinities")


class Clock:
    """Seconds of the steps of a part, each until the device is done."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.seconds: dict[str, float] = {}

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Time what happens within."""
        began = time.perf_counter()
        yield
        if self._device.type == "cuda":
            torch.cuda.synchronize()
        self.seconds[name] = time.perf_counter() - began
        print(f"  {name}: {self.seconds[name]:.2f} s", flush=True)


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise TimeoutError after so many seconds."""

    def stop(number: int, frame: Any) -> None:
        raise TimeoutError(f"not done after {seconds:.0f} s")

    signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def peak_gib(device: torch.device) -> float:
    """Peak of what torch allocated since the part began, or of the process on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated() / 2**30
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def classes_of(count: int, width: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Points around a centre for each of a hundred classes, and the classes."""
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(CLASSES, width, generator=generator)
    classes = torch.randint(CLASSES, (count,), generator=generator)
    return (centres[classes] + torch.randn(count, width, generator=generator)).to(device), classes.to(device)


def recall(points: Tensor, found: Tensor) -> float:
    """Share of the exact neighbours of 500 rows, other rows than those that a graph measures itself on."""
    asked = torch.arange(7, len(points), max(1, len(points) // SAMPLE), device=points.device)
    exact = NearestVectors(points).search(points[asked], found.shape[1] + 1).rows[:, 1:]
    return float((found[asked][:, :, None] == exact[:, None, :]).any(2).double().mean())


def graph(args: argparse.Namespace, clock: Clock, device: torch.device) -> dict[str, Any]:
    """Graph and posteriors from ten labels of each class."""
    points, classes = classes_of(args.count, WIDTH, device)
    labels = torch.full_like(classes, -1)
    labels[: LABELS * CLASSES] = classes[: LABELS * CLASSES]
    with clock.step("graph"):
        neighbors = graph_neighbors(points, K)
    with clock.step("posteriors"):
        found = class_posteriors(neighbors, labels)
    peak = peak_gib(device)
    right = found.classes[found.shares.argmax(1)] == classes
    return {
        "size": [args.count, WIDTH],
        "seconds": clock.seconds["graph"] + clock.seconds["posteriors"],
        "peak_gib": peak,
        "recall": recall(points, neighbors),
        "accuracy": float(right[labels < 0].double().mean()),
    }


def exact(args: argparse.Namespace, clock: Clock, device: torch.device) -> dict[str, Any]:
    """Exact neighbours of all rows; some lists are checked in float64."""
    points, _ = classes_of(args.count, WIDTH, device)
    with clock.step("exact neighbours"):
        neighbors = nearest_neighbors(points, K)
    peak = peak_gib(device)
    asked = torch.arange(7, args.count, args.count // 64, device=device)
    distances = torch.cdist(points[asked].double(), points.double(), compute_mode="donot_use_mm_for_euclid_dist")
    distances[torch.arange(len(asked), device=device), asked] = torch.inf
    right = distances.topk(K, dim=1, largest=False).indices == neighbors[asked]
    return {
        "size": [args.count, WIDTH],
        "seconds": clock.seconds["exact neighbours"],
        "peak_gib": peak,
        "equal_lists": float(right.all(1).double().mean()),
    }


def scores(args: argparse.Namespace, clock: Clock, device: torch.device) -> dict[str, Any]:
    """``evaluate``, as a user calls it."""
    points, classes = classes_of(args.count, SCORED_WIDTH, device)
    with clock.step("evaluate"):
        found = evaluate(points, classes)
    return {
        "size": [args.count, SCORED_WIDTH],
        "seconds": clock.seconds["evaluate"],
        "peak_gib": peak_gib(device),
        "scores": found,
    }


def mnist(args: argparse.Namespace, clock: Clock, device: torch.device) -> dict[str, Any]:
    """An ordinary fit of ``consensus``."""
    with clock.step("consensus"):
        outcome = run_job(Job("mnist", "consensus", 0, "default"), args.data_dir, device.type, os.cpu_count() or 1)
    facts = {name: outcome[name] for name in ("final", "best_epoch", "epochs")}
    return {"size": [70_000, 784], "seconds": clock.seconds["consensus"], "peak_gib": peak_gib(device)} | facts


def affinities(args: argparse.Namespace, clock: Clock, device: torch.device) -> dict[str, Any]:
    """Affinities and triplets of a tenth of the nodes, then of all; without the latter if they would take too long."""
    found: dict[str, Any] = {"size": [args.count, WIDTH]}
    began = time.perf_counter()
    for name, count in (("tenth", args.count // 10), ("all", args.count)):
        if name == "tenth" or not args.only_tenth:
            left = args.limit - (time.perf_counter() - began)
            last = found[name] = affinities_of(args.kind, count, clock, device, left)
    return found | {name: last[name] for name in ("seconds", "peak_gib", "error_bound")}


def affinities_of(kind: str, count: int, clock: Clock, device: torch.device, limit: float) -> dict[str, Any]:
    """Affinities and triplets of one graph, or how long they would take if that is more than ``limit``."""
    points = clustered(count, WIDTH) if kind == "clusters" else points_of(kind, count)
    began = time.perf_counter()
    with clock.step(f"graph of {count}"):
        neighbors = graph_neighbors(points.to(device), K)
    with clock.step(f"modes of {count}"):
        walk = EdgeWalk(neighbors, GAMMA)
    walk.columns(0, min(walk.width, count))
    starts = range(0, count - walk.width, max(1, (count - walk.width) // 4))
    with clock.step(f"sample of {count}"):
        sample = [walk.columns(start, start + walk.width) for start in starts]
    each = clock.seconds[f"sample of {count}"] / (len(sample) * walk.width)
    row: dict[str, Any] = {"count": count, "kind": kind, "width": walk.width, "us_per_column": 1e6 * each}
    row["estimate_s"] = each * count + clock.seconds[f"modes of {count}"]
    row["error_bound"], row["peak_gib"] = max(block.bound for block in sample), peak_gib(device)
    if row["estimate_s"] > limit - (time.perf_counter() - began):
        return row | {"seconds": row["estimate_s"], "estimated": True}
    del walk, sample
    labels = some_labels(count).to(device)
    with clock.step(f"affinities of {count}"), told_bounds() as bounds:
        weights = propagate_affinities(neighbors, labels, GAMMA, solver="iterative")
    with clock.step(f"triplets of {count}"):
        triplets = mine_triplets(neighbors, weights)
    row |= {"error_bound": max(bounds), "triplets": len(triplets), "peak_gib": peak_gib(device), "estimated": False}
    return row | {"seconds": clock.seconds[f"affinities of {count}"] + clock.seconds[f"triplets of {count}"]}


MEASURES: dict[str, Callable[[argparse.Namespace, Clock, torch.device], dict[str, Any]]] = {
    "graph": graph,
    "exact": exact,
    "evaluate": scores,
    "mnist": mnist,
    "affinities": affinities,
}


def measured(name: str, args: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    """One part within its limit; one that fails leaves the others."""
    print(f"{name}", flush=True)
    clock = Clock(device)
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    try:
        with time_limit(args.limit + 30):
            found = MEASURES[name](args, clock, device)
    except Exception as error:
        found = {"error": f"{type(error).__name__}: {error}", "peak_gib": peak_gib(device)}
        print(f"  {found['error']}", flush=True)
    return {"part": name, "steps": clock.seconds} | found


def line(row: dict[str, Any]) -> str:
    """A row of the table."""
    if "error" in row:
        return f"{row['part']:<11}{row['error']}"
    size = " x ".join(f"{entry:,}" for entry in row["size"])
    told = [f"{name} {row[name]:.4g}" for name in ("recall", "accuracy", "equal_lists", "error_bound") if name in row]
    if row.get("all", {}).get("estimated"):
        told.append("estimated")
    if "scores" in row or "final" in row:
        told += [f"{name} {value:.3f}" for name, value in (row.get("scores") or row["final"]).items()][:2]
    return f"{row['part']:<11}{size:<18}{row['seconds']:>9.1f} s{row['peak_gib']:>9.2f} GiB  {', '.join(told)}"


def parser() -> argparse.ArgumentParser:
    """The command line."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--parts", nargs="+", default=list(PARTS), choices=PARTS)
    options.add_argument("--count", type=int, default=1_000_000)
    options.add_argument("--kind", default="clusters", choices=["clusters", "one"], help="Points of the affinities.")
    options.add_argument("--only-tenth", action="store_true", help="Affinities of a tenth of the nodes alone.")
    options.add_argument("--limit", type=float, default=60.0, help="Seconds that a part may take.")
    options.add_argument("--device", default="cuda")
    options.add_argument("--data-dir", type=Path, help="Folder that holds MNIST; without it that part is left out.")
    options.add_argument("--out", type=Path)
    return options


def main() -> None:
    """Measure, print, write."""
    args = parser().parse_args()
    device = torch.device(args.device)
    if device.type == "cuda":
        torch.zeros(1, device=device)
    rows = []
    for name in args.parts:
        if name != "mnist" or args.data_dir is not None:
            rows.append(measured(name, args, device))
            write_result(args.out, machine() | {"limit_s": args.limit, "rows": rows})
    print("\n".join(line(row) for row in rows))


if __name__ == "__main__":
    main()
