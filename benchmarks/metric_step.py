"""Time one metric step (10 conjugate gradient iterations) against pymanopt: python benchmarks/metric_step.py.

Both solve the same problems from the same starts in float64 on one thread, in turns, so that whatever else the machine
does falls on both. pymanopt gets its defaults (adaptive line search, Hestenes-Stiefel, QR retraction) and hand-written
NumPy cost and gradient in the same efficient form as ours. It counts the start as its first iteration, so it is given
one more than we are: both make the same number of steps and end at the same cost up to rounding.
"""

from __future__ import annotations

import argparse
import math
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from threadpoolctl import threadpool_info, threadpool_limits
from torch import Tensor

from semimetric.files import write_json
from semimetric.metric import minimize_angular, random_orthonormal

D, COMPONENTS, TRIPLETS, ALPHA, ITERATIONS = 128, 64, 100, 40.0, 10
Problem = tuple[Tensor, Tensor, Tensor, Tensor]


def make_problem(seed: int) -> Problem:
    """Start and triplets from ten noisy clusters on the unit sphere; positives share the anchor's cluster."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(10, D, generator=generator, dtype=torch.float64)

    def sample(clusters: Tensor) -> Tensor:
        noise = torch.randn(len(clusters), D, generator=generator, dtype=torch.float64)
        return torch.nn.functional.normalize(centres[clusters] + noise, dim=1)

    own = torch.randint(10, (TRIPLETS,), generator=generator)
    other = (own + torch.randint(1, 10, (TRIPLETS,), generator=generator)) % 10
    start = random_orthonormal(D, COMPONENTS, generator)
    return start, sample(own), sample(own), sample(other)


def pymanopt_solver(problem: Problem) -> Callable[[], float]:
    """Return a function that runs pymanopt on the problem and gives its final cost."""
    import pymanopt
    from pymanopt.manifolds import Stiefel
    from pymanopt.optimizers import ConjugateGradient

    start, anchor, positive, negative = (tensor.numpy() for tensor in problem)
    height = (negative - (anchor + positive) / 2) * (2 * math.tan(math.radians(ALPHA)))
    rows = np.concatenate([anchor - positive, height])
    manifold = Stiefel(D, COMPONENTS)
    Array = npt.NDArray[np.float64]

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

    task = pymanopt.Problem(manifold, cost, euclidean_gradient=euclidean_gradient)
    optimizer = ConjugateGradient(max_iterations=ITERATIONS + 1, verbosity=0)
    return lambda: float(optimizer.run(task, initial_point=start).cost)


def our_solver(problem: Problem) -> Callable[[], float]:
    """Return a function that runs our solver on the problem and gives its final cost."""
    return lambda: minimize_angular(*problem, ALPHA, max_iterations=ITERATIONS).cost.item()


def measure(problems: int, repeats: int) -> list[dict[str, float]]:
    """Median milliseconds and final costs of both solvers on each problem."""
    rows = []
    for seed in range(problems):
        problem = make_problem(seed)
        solvers = {"ours": our_solver(problem), "pymanopt": pymanopt_solver(problem)}
        costs = {name: solve() for name, solve in solvers.items()}
        times: dict[str, list[float]] = {name: [] for name in solvers}
        for _ in range(repeats):
            for name, solve in solvers.items():
                begin = time.perf_counter()
                solve()
                times[name].append(1e3 * (time.perf_counter() - begin))
        row = {"seed": float(seed)}
        for name in solvers:
            row[f"{name}_ms"] = statistics.median(times[name])
            row[f"{name}_cost"] = costs[name]
        row["ratio"] = row["pymanopt_ms"] / row["ours_ms"]
        rows.append(row)
    return rows


def describe_machine() -> dict[str, Any]:
    """What the times depend on."""
    return {
        "machine": platform.machine(),
        "processor": _processor(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
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


def main() -> None:
    """Measure, print a table and, if asked, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=40, help="timed solves per problem and solver")
    parser.add_argument("--problems", type=int, default=5, help="how many random problems")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with threadpool_limits(1):
        rows = measure(arguments.problems, arguments.repeats)
    summary = {key: statistics.median(row[key] for row in rows) for key in ("ours_ms", "pymanopt_ms", "ratio")} | {
        "worst_cost_ratio": max(row["ours_cost"] / row["pymanopt_cost"] for row in rows)
    }
    print(f"d={D} l={COMPONENTS} T={TRIPLETS}, {ITERATIONS} iterations, float64, {torch.get_num_threads()} thread")
    print(f"{'problem':>8}{'ours ms':>10}{'pymanopt ms':>13}{'ratio':>8}{'our cost':>12}{'pymanopt cost':>15}")
    for row in rows:
        print(
            f"{row['seed']:8.0f}{row['ours_ms']:10.2f}{row['pymanopt_ms']:13.2f}{row['ratio']:8.2f}"
            f"{row['ours_cost']:12.4f}{row['pymanopt_cost']:15.4f}"
        )
    print(f"{'median':>8}{summary['ours_ms']:10.2f}{summary['pymanopt_ms']:13.2f}{summary['ratio']:8.2f}")
    if arguments.out:
        setting = {"d": D, "l": COMPONENTS, "triplets": TRIPLETS, "alpha": ALPHA, "iterations": ITERATIONS}
        write_json(
            arguments.out,
            {"machine": describe_machine(), "setting": setting, "problems": rows, "summary": summary},
        )


if __name__ == "__main__":
    main()
