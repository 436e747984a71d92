"""Time the metric steps of the classical methods on one working set: python benchmarks/closed_forms.py.

A working set of the paper's size: 9,100 clustered unit vectors of 128 dimensions, 10 classes, 100 labels. The
neighbour graph is built beforehand. "closed form" is the metric step without what it asks of the graph (for APLLR and
APIT the form of the propagated affinities, timed against the explicit one in affinity_form.py), "step" the whole of
it.
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from affinity_form import clustered
from jobs import machine, write_result
from torch import Tensor

from semimetric.methods import build_method
from semimetric.metric import Metric, logdet_proximal

METHODS = ("lrml", "isdml", "apllr", "apit", "seraph")


def milliseconds(work: Callable[[], Any], repeats: int) -> list[float]:
    """Times of some repeats, after one to warm up."""
    work()
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        times.append(1e3 * (time.perf_counter() - began))
    return times


def steps(name: str, points: Tensor, labels: Tensor) -> dict[str, Callable[[], Any]]:
    """What is timed for a method."""
    method = build_method(name)
    constraints = method.constraints(points, labels)
    start = Metric.identity(points.shape[1])
    found: dict[str, Callable[[], Any]] = {"step": lambda: method.update_metric(start, points, constraints)}
    if name in ("apllr", "apit"):
        form = constraints.form(points)
        known = points[constraints.labelled]

        def closed_form() -> Metric:
            prior = method.prior(known, constraints.classes, method._scatters(points, constraints))
            return Metric.from_matrix(logdet_proximal(prior, form, method.settings.graph_weight)[0])

        found["closed form"] = closed_form
    elif name != "seraph":
        found["closed form"] = found["step"]
    return found


def parser() -> argparse.ArgumentParser:
    """The command line."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--threads", type=int, default=2)
    options.add_argument("--repeats", type=int, default=5)
    options.add_argument("--out", type=Path)
    return options


def main() -> None:
    """Measure all, print a table, write the JSON."""
    args = parser().parse_args()

    torch.set_num_threads(args.threads)
    warnings.simplefilter("ignore")
    points, labels = clustered(9100, 128)
    rows: dict[str, dict[str, Any]] = {}
    for name in METHODS:
        for what, work in steps(name, points, labels).items():
            times = milliseconds(work, args.repeats)
            rows[f"{name} {what}"] = {"median_ms": statistics.median(times), "times_ms": times}
            print(f"{name} {what}: {statistics.median(times):.0f} ms", flush=True)
    write_result(args.out, machine() | {"threads": args.threads, "rows": rows})


if __name__ == "__main__":
    main()
