"""Peak memory of the methods that keep something of every example, over one whole epoch on a CPU.

    python benchmarks/baseline_memory.py --out benchmarks/results/baseline_memory.json

``instance`` has a bank of 50,000 rows and compares every batch with all of them, ``deepcluster`` clusters 60,000
examples: the sizes of CIFAR-10 and MNIST, on the paper's networks for them. Inputs are noise, of which k-means makes no
quick work. Each runs in a process of its own, whose peak resident memory has everything in it: Python, torch, inputs,
network, method. More than 4 GiB is a failure.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jobs import machine, write_result

from semimetric.encoders import build_encoder
from semimetric.methods import Method
from semimetric.methods.deepcluster import DeepCluster
from semimetric.methods.instance import Instance
from semimetric.training import Trainer, TrainingData, TrainingSettings

LIMIT = 4.0
GIB = 2**30


@dataclass(frozen=True)
class Case:
    """A method at its defaults on so many examples of a shape, with the network for them."""

    method: type[Method[Any]]
    examples: int
    shape: tuple[int, ...]
    encoder: str


CASES = (
    Case(Instance, 50_000, (3, 32, 32), "paper-cifar10"),
    Case(DeepCluster, 60_000, (1, 28, 28), "paper-mnist"),
)


def run_case(case: Case, batch_size: int, threads: int) -> dict[str, Any]:
    """Train for an epoch; what this process has ever held."""
    torch.set_num_threads(threads)
    before = peak_memory()
    inputs = torch.randn(case.examples, *case.shape, generator=torch.Generator().manual_seed(0))
    data = TrainingData(inputs, torch.full((case.examples,), -1))
    encoder = build_encoder(case.encoder, case.shape, 0, "he")
    settings = TrainingSettings(epochs=1, batch_size=batch_size, lr=1e-5, selection="last")
    began = time.perf_counter()
    Trainer(encoder, case.method(), data, settings).fit()
    return {
        "method": case.method.name,
        "examples": case.examples,
        "shape": list(case.shape),
        "encoder": case.encoder,
        "batch_size": batch_size,
        "steps": case.examples // batch_size,
        "seconds": time.perf_counter() - began,
        "inputs_gib": inputs.nbytes / GIB,
        "started_gib": before,
        "peak_gib": peak_memory(),
    }


def peak_memory() -> float:
    """Largest resident memory of this process so far, in GiB."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / GIB


def measured(case: Case, batch_size: int, threads: int) -> dict[str, Any]:
    """The same in a new process, printed."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        found = pool.submit(run_case, case, batch_size, threads).result()
    print(
        f"{found['method']}: {found['examples']} examples, peak {found['peak_gib']:.2f} GiB "
        f"(inputs {found['inputs_gib']:.2f}, before them {found['started_gib']:.2f}), {found['seconds']:.0f} s",
        flush=True,
    )
    return found


def parser() -> argparse.ArgumentParser:
    """The command line."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--batch-size", type=int, default=256)
    options.add_argument("--threads", type=int, default=1)
    options.add_argument("--out", type=Path)
    return options


def main() -> None:
    """Measure all, print a line for each, write the JSON."""
    args = parser().parse_args()

    results = [measured(case, args.batch_size, args.threads) for case in CASES]
    write_result(args.out, machine() | {"limit_gib": LIMIT, "threads": args.threads, "results": results})
    over = [found["method"] for found in results if found["peak_gib"] > LIMIT]
    if over:
        sys.exit(f"more than {LIMIT:g} GiB: {', '.join(over)}")


if __name__ == "__main__":
    main()
