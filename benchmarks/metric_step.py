"""Time one metric step (10 conjugate gradient steps) against pymanopt: python benchmarks/metric_step.py.

All solve the same problems from the same starts in float64 on one thread, in turns, so that whatever else the machine
does falls on all. pymanopt runs with its defaults (adaptive line search, Hestenes-Stiefel, QR retraction) on the same
objective written in three ways:

tuned     NumPy, gradient by hand, sides and scaled heights stacked in one matrix of rows: O(d l T) per gradient
formula   NumPy, gradient by hand as the formula reads, G = 2 C L with the d x d matrix
          C = A diag(s) A^T - 4 tan(alpha)^2 B diag(s) B^T: O(d^2 T + d^2 l) per gradient
autodiff  torch, the cost only; pymanopt differentiates it

pymanopt counts the start as its first iteration, so it is given one more than we are. The number of steps made is
checked: a comparison of unequal work is refused.

With --threads it times our metric step alone, with one BLAS thread and with as many as BLAS takes by itself (one for
each processor), in turns: first as the machine is, then beside as many busy processes as it has processors.
"""

from __future__ import annotations

import argparse
import math
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pymanopt
import scipy
import torch
from jobs import command
from pymanopt.manifolds import Stiefel
from pymanopt.optimizers import ConjugateGradient
from threadpoolctl import threadpool_info, threadpool_limits
from torch import Tensor

from semimetric.core.files import write_json
from semimetric.metric import host_solver, minimize_angular, random_orthonormal

SIZES = (100, 500, 2_000, 10_000, 50_000)
D, COMPONENTS, TRIPLETS, ALPHA, STEPS = 128, 64, 100, 40.0, 10
TAU = math.tan(math.radians(ALPHA)) ** 2
Array = npt.NDArray[np.float64]


class Problem(NamedTuple):
    """A start (d, l) and triplets, three times (T, d)."""

    start: Tensor
    anchor: Tensor
    positive: Tensor
    negative: Tensor


class Outcome(NamedTuple):
    """Final cost and number of steps made."""

    cost: float
    steps: int


Solver = Callable[[], Outcome]


def make_problem(seed: int, triplets: int = TRIPLETS) -> Problem:
    """Start and triplets from ten noisy clusters on the unit sphere; positives share the anchor's cluster."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(10, D, generator=generator, dtype=torch.float64)

    def sample(clusters: Tensor) -> Tensor:
        noise = torch.randn(len(clusters), D, generator=generator, dtype=torch.float64)
        return torch.nn.functional.normalize(centres[clusters] + noise, dim=1)

    own = torch.randint(10, (triplets,), generator=generator)
    other = (own + torch.randint(1, 10, (triplets,), generator=generator)) % 10
    start = random_orthonormal(D, COMPONENTS, generator)
    return Problem(start, sample(own), sample(own), sample(other))


def ours(problem: Problem) -> Solver:
    """The solver of this package."""

    def solve() -> Outcome:
        result = minimize_angular(*problem, ALPHA, max_iterations=STEPS)
        return Outcome(result.cost.item(), int(result.iterations))

    return solve


def run_pymanopt(task: pymanopt.Problem, problem: Problem) -> Solver:
    """Let pymanopt solve ``task``."""
    optimizer = ConjugateGradient(max_iterations=STEPS + 1, verbosity=0)
    start = np.ascontiguousarray(problem.start.numpy())

    def solve() -> Outcome:
        result = optimizer.run(task, initial_point=start)
        return Outcome(float(result.cost), int(result.iterations) - 1)

    return solve


def tuned(problem: Problem) -> Solver:
    """Cost and gradient in the same efficient form as ours."""
    _, anchor, positive, negative = (tensor.numpy() for tensor in problem)
    height = (negative - (anchor + positive) / 2) * (2 * math.sqrt(TAU))
    rows = np.concatenate([anchor - positive, height])
    manifold = Stiefel(D, COMPONENTS)

    def margins(projections: Array) -> Array:
        squares = np.einsum("ij,ij->i", projections, projections)
        return squares[:TRIPLETS] - squares[TRIPLETS:]

    @pymanopt.function.numpy(manifold)
    def cost(point: Array) -> float:
        return float(np.logaddexp(0.0, margins(rows @ point)).sum())

    @pymanopt.function.numpy(manifold)
    def euclidean_gradient(point: Array) -> Array:
        projections = rows @ point
        slopes = 2.0 / (1.0 + np.exp(-margins(projections)))
        return rows.T @ (np.concatenate([slopes, -slopes])[:, None] * projections)

    return run_pymanopt(pymanopt.Problem(manifold, cost, euclidean_gradient=euclidean_gradient), problem)


def formula(problem: Problem) -> Solver:
    """Cost and gradient with the columns of A (d, T) and B (d, T) and the d x d matrix C."""
    _, anchor, positive, negative = (np.ascontiguousarray(tensor.numpy().T) for tensor in problem)
    a = anchor - positive
    b = negative - (anchor + positive) / 2
    manifold = Stiefel(D, COMPONENTS)

    def margins(point: Array) -> Array:
        return ((point.T @ a) ** 2).sum(0) - 4 * TAU * ((point.T @ b) ** 2).sum(0)

    @pymanopt.function.numpy(manifold)
    def cost(point: Array) -> float:
        return float(np.logaddexp(0.0, margins(point)).sum())

    @pymanopt.function.numpy(manifold)
    def euclidean_gradient(point: Array) -> Array:
        s = 1 / (1 + np.exp(-margins(point)))
        c = (a * s) @ a.T - 4 * TAU * (b * s) @ b.T
        return 2 * c @ point

    return run_pymanopt(pymanopt.Problem(manifold, cost, euclidean_gradient=euclidean_gradient), problem)


def autodiff(problem: Problem) -> Solver:
    """The cost in torch; pymanopt asks autograd for the gradient."""
    _, anchor, positive, negative = problem
    sides = anchor - positive
    heights = negative - (anchor + positive) / 2
    manifold = Stiefel(D, COMPONENTS)

    @pymanopt.function.pytorch(manifold)
    def cost(point: Tensor) -> Tensor:
        margins = (sides @ point).square().sum(1) - 4 * TAU * (heights @ point).square().sum(1)
        return torch.nn.functional.softplus(margins).sum()

    return run_pymanopt(pymanopt.Problem(manifold, cost), problem)


USAGES = {"tuned": tuned, "formula": formula, "autodiff": autodiff}


def measure(seed: int, repeats: int) -> dict[str, float]:
    """Median milliseconds and final costs of all solvers on one problem, and how many times slower pymanopt is."""
    problem = make_problem(seed)
    solvers = {"ours": ours(problem)} | {name: make(problem) for name, make in USAGES.items()}
    outcomes = {name: solve() for name, solve in solvers.items()}
    if any(outcome.steps != STEPS for outcome in outcomes.values()):
        raise SystemExit(f"The solvers made different numbers of steps on problem {seed}: {outcomes}.")
    times: dict[str, list[float]] = {name: [] for name in solvers}
    for _ in range(repeats):
        for name, solve in solvers.items():
            begin = time.perf_counter()
            solve()
            times[name].append(1e3 * (time.perf_counter() - begin))
    row = {f"{name}_ms": statistics.median(values) for name, values in times.items()}
    row |= {f"{name}_cost": outcome.cost for name, outcome in outcomes.items()}
    row |= {f"{name}_time_ratio": row[f"{name}_ms"] / row["ours_ms"] for name in USAGES}
    return row | {f"{name}_cost_ratio": row["ours_cost"] / row[f"{name}_cost"] for name in USAGES}


def summarize(rows: list[dict[str, float]]) -> dict[str, float]:
    """Median times and time ratios over the problems; the worst ratio of our cost to pymanopt's."""
    medians = {
        key: statistics.median(row[key] for row in rows) for key in rows[0] if key.endswith(("_ms", "_time_ratio"))
    }
    return medians | {f"{name}_worst_cost_ratio": max(row[f"{name}_cost_ratio"] for row in rows) for name in USAGES}


def describe_machine() -> dict[str, Any]:
    """What the times depend on."""
    return {
        "machine": platform.machine(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "system": platform.system(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "scipy": scipy.__version__,
        "pymanopt": pymanopt.__version__,
        "threads": torch.get_num_threads(),
        "blas": [f"{pool['internal_api']} {pool['version']}" for pool in threadpool_info()],
    }


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor()


def print_table(rows: list[dict[str, float]], summary: dict[str, float]) -> None:
    """One line per solver: time, how many times ours, and the final costs."""
    print(f"d={D} l={COMPONENTS} T={TRIPLETS}, {STEPS} steps, float64, {torch.get_num_threads()} thread")
    print(f"{'solver':<20}{'ms':>8}{'x ours':>8}  final cost on each problem")
    for name in ("ours", *USAGES):
        title = name if name == "ours" else f"pymanopt, {name}"
        costs = " ".join(f"{row[f'{name}_cost']:.6f}" for row in rows)
        print(f"{title:<20}{summary[f'{name}_ms']:8.2f}{summary.get(f'{name}_time_ratio', 1.0):8.2f}  {costs}")


@contextmanager
def busy_processes() -> Iterator[None]:
    """Beside as many processes that only count as there are processors."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def measure_threads(repeats: int) -> list[dict[str, Any]]:
    """Median milliseconds of the metric step by size, machine and threads of BLAS, with the load average before."""
    host_solver.ONE_THREAD_PRODUCT = 0  # or it would take one thread itself
    rows: list[dict[str, Any]] = []
    for name, beside in {"alone": nullcontext, "busy": busy_processes}.items():
        for triplets in SIZES:
            solve = ours(make_problem(0, triplets))
            times: dict[str, list[float]] = {"one": [], "all": []}
            row: dict[str, Any] = {"machine": name, "triplets": triplets, "load": os.getloadavg()[0]}
            with beside():
                for _ in range(repeats):
                    for threads, of in times.items():
                        with threadpool_limits(1 if threads == "one" else os.cpu_count(), user_api="blas"):
                            begin = time.perf_counter()
                            solve()
                        of.append(1e3 * (time.perf_counter() - begin))
            row |= {f"{threads}_ms": statistics.median(of) for threads, of in times.items()}
            row |= {f"{threads}_worst_ms": max(of) for threads, of in times.items()}
            rows.append(row)
            print(
                " ".join(f"{key}={value:.4g}" if isinstance(value, float) else f"{value}" for key, value in row.items())
            )
    return rows


def parser() -> argparse.ArgumentParser:
    """The command line."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--repeats", type=int, default=40, help="timed solves per problem and solver")
    options.add_argument("--problems", type=int, default=5, help="how many random problems")
    options.add_argument("--threads", action="store_true", help="one BLAS thread against all, alone and busy")
    options.add_argument("--out", type=Path, help="JSON file to write")
    return options


def main() -> None:
    """Measure, print a table and, if asked, write the JSON."""
    arguments = parser().parse_args()
    torch.set_num_threads(1)
    if arguments.threads:
        setting = {"d": D, "l": COMPONENTS, "alpha": ALPHA, "steps": STEPS}
        report = {"command": command(), "machine": describe_machine(), "setting": setting}
        report["measured"] = measure_threads(arguments.repeats)
        if arguments.out:
            write_json(arguments.out, report)
        return
    with threadpool_limits(1):
        rows = [measure(seed, arguments.repeats) for seed in range(arguments.problems)]
        machine = describe_machine()
    summary = summarize(rows)
    print_table(rows, summary)
    if arguments.out:
        setting = {"d": D, "l": COMPONENTS, "triplets": TRIPLETS, "alpha": ALPHA, "steps": STEPS}
        report = {"command": command(), "machine": machine, "setting": setting, "problems": rows, "summary": summary}
        write_json(arguments.out, report)


if __name__ == "__main__":
    main()
