"""Time the form of propagated affinities with and without their N x N matrix: python benchmarks/affinity_form.py.

All compute T = Z^T Lap Z, Lap the Laplacian of the propagated affinities of all pairs of nodes, from the same features,
neighbour lists and labels, and from T / sum |W*| the metric next to a prior. In turns, so that whatever else the
machine does falls on all:

ours      solves with I - gamma Q by products with Q alone: ``propagated_form``
inverse   the definition: the inverse of I - gamma Q, W, its Laplacian, Z^T Lap Z, in float64
lu        an N x N factorisation of I - gamma Q and d + 1 solves with it, a third of the work of the inverse

The neighbour search, common to all, is not timed. M is compared at the weight asked for and at the largest weight that
leaves its problem bounded, where it depends on T most.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jobs import machine, write_result
from torch import Tensor

from semimetric.graph import nearest_neighbors, propagated_affinity_matrix
from semimetric.graph.forms import propagated_form
from semimetric.metric.closed_forms import logdet_proximal


class Problem(NamedTuple):
    """Features (N, d), neighbour lists (N, k), labels (N,) and the discount of the walk."""

    points: Tensor
    neighbors: Tensor
    labels: Tensor
    gamma: float


def clustered(nodes: int, width: int, spread: float = 0.2, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Unit vectors around random directions, one for each of ten classes, and ten labels for each."""
    generator = torch.Generator().manual_seed(seed)
    directions = torch.nn.functional.normalize(torch.randn(10, width, generator=generator, dtype=torch.float64), dim=1)
    classes = torch.arange(nodes) % 10
    noise = torch.randn(nodes, width, generator=generator, dtype=torch.float64)
    points = torch.nn.functional.normalize(directions[classes] + spread * noise, dim=1)
    return points, torch.where(torch.arange(nodes) < 100, classes, -1)


def make_problem(arguments: argparse.Namespace) -> Problem:
    """The clustered vectors with their neighbour lists."""
    points, labels = clustered(arguments.nodes, arguments.width, arguments.spread, arguments.seed)
    return Problem(points, nearest_neighbors(points, arguments.k), labels, arguments.gamma)


def ours(problem: Problem) -> Tensor:
    """The form of this package."""
    return propagated_form(*problem).matrix


def inverse(problem: Problem) -> Tensor:
    """The form as its definition reads."""
    laplacian = propagated_affinity_matrix(problem.neighbors, problem.labels, problem.gamma).neg_()
    laplacian.diagonal().sub_(laplacian.sum(1))
    return problem.points.T @ (laplacian @ problem.points)


def lu(problem: Problem) -> Tensor:
    """The same with one factorisation: W* Z and W* 1 by forward solves, W*^T 1 by one with the transpose."""
    points, neighbors, labels, gamma = problem
    count, k = neighbors.shape
    system = torch.zeros(count, count, dtype=torch.float64).scatter_(1, neighbors, -gamma / k).fill_diagonal_(1.0)
    factors, pivots = torch.linalg.lu_factor(system)
    ones = torch.ones(count, 1, dtype=torch.float64)
    known = labels >= 0
    block = torch.where(labels[known][:, None] == labels[known], 1.0, -1.0).double()

    def known_affinities(columns: Tensor) -> Tensor:
        product = columns.clone()
        product[known] = block @ columns[known]
        return product

    outward = (1 - gamma) * torch.linalg.lu_solve(factors, pivots, known_affinities(torch.cat([points, ones], dim=1)))
    inward = known_affinities((1 - gamma) * torch.linalg.lu_solve(factors, pivots, ones, adjoint=True))
    form = points.T @ ((outward[:, -1:] + inward) / 2 * points - outward[:, :-1])
    return (form + form.T) / 2


FORMS: dict[str, Callable[[Problem], Tensor]] = {"ours": ours, "inverse": inverse, "lu": lu}


def make_prior(width: int, seed: int) -> Tensor:
    """A positive definite matrix of trace d."""
    factor = torch.randn(width, 2 * width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    prior = factor @ factor.T
    return prior * (width / prior.trace())


def measure(problem: Problem, repeats: dict[str, int]) -> tuple[dict[str, list[float]], dict[str, Tensor]]:
    """Seconds of each form, in turns until each has had its repeats, and the forms."""
    times: dict[str, list[float]] = {name: [] for name in FORMS}
    forms = {}
    ours(problem)  # the first call pays for the start of thread pools
    for turn in range(max(repeats.values())):
        for name, form in FORMS.items():
            if turn < repeats[name]:
                begin = time.perf_counter()
                forms[name] = form(problem)
                times[name].append(time.perf_counter() - begin)
    return times, forms


def difference(value: Tensor, reference: Tensor) -> float:
    """Relative difference in the Frobenius norm."""
    return float((value - reference).norm() / reference.norm())


def compare(forms: dict[str, Tensor], total: float, weight: float, seed: int) -> dict[str, Any]:
    """Relative differences of T and M between ours and the inverse."""
    prior = make_prior(len(forms["ours"]), seed)
    rows: dict[str, Any] = {"T": difference(forms["ours"], forms["inverse"])}
    for name, asked in (("M", weight), ("M at the largest weight", 1e30)):
        mine, exact = (logdet_proximal(prior, forms[form] / total, asked) for form in ("ours", "inverse"))
        rows[name] = difference(mine[0], exact[0])
        rows[f"{name}, moved from the prior by"] = difference(exact[0], prior)
    return rows


def print_report(report: dict[str, Any]) -> None:
    """One line for each form, then the differences."""
    print(" ".join(f"{name}={value}" for name, value in report["setting"].items()))
    print(f"{'form':<10}{'median s':>10}{'least s':>10}{'x ours':>10}")
    for name, row in report["forms"].items():
        print(f"{name:<10}{row['median']:10.3f}{row['least']:10.3f}{row['factor']:10.1f}")
    print("relative to the inverse:", ", ".join(f"{name} {value:.1e}" for name, value in report["differences"].items()))


def parser() -> argparse.ArgumentParser:
    """The command line."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--nodes", type=int, default=9100)
    options.add_argument("--width", type=int, default=128, help="d")
    options.add_argument("--k", type=int, default=10)
    options.add_argument("--gamma", type=float, default=0.99)
    options.add_argument("--spread", type=float, default=0.2, help="noise of a coordinate around its class's direction")
    options.add_argument("--weight", type=float, default=1.0, help="weight of T / sum |W*| beside the prior")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--threads", type=int, default=2)
    options.add_argument("--repeats", type=int, default=5, help="timed runs of ours")
    options.add_argument("--dense-repeats", type=int, default=2, help="timed runs of the two N x N forms")
    options.add_argument("--out", type=Path, help="JSON file to write")
    return options


def main() -> None:
    """Measure, print a table and, if asked, write the JSON."""
    arguments = parser().parse_args()
    torch.set_num_threads(arguments.threads)
    problem = make_problem(arguments)
    dense = arguments.dense_repeats
    times, forms = measure(problem, {"ours": arguments.repeats, "inverse": dense, "lu": dense})
    median = {name: statistics.median(values) for name, values in times.items()}
    rows = {
        name: {"seconds": values, "median": median[name], "least": min(values), "factor": median[name] / median["ours"]}
        for name, values in times.items()
    }
    setting = {name: value for name, value in vars(arguments).items() if name != "out"}
    total = propagated_form(*problem).total
    differences = compare(forms, total, arguments.weight, arguments.seed)
    report = {"machine": machine(), "setting": setting, "forms": rows, "differences": differences}
    print_report(report)
    write_result(arguments.out, report)


if __name__ == "__main__":
    main()
