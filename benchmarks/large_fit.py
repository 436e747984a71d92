"""A fit of ``SemiMetric`` on many rows beside that of another version: CPU seconds on one thread, and the accuracy.

    python benchmarks/large_fit.py --other FOLDER --out benchmarks/results/large_fit.json

FOLDER has the sources of the other version. Each fit has a process of its own; versions take turns.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from jobs import machine, write_result

CLASSES, LABELS, WIDTH = 10, 10, 64


def mixture(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Ten classes of ten overlapping groups each."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(10 * CLASSES, WIDTH, generator=generator)
    groups = torch.randint(10 * CLASSES, (count,), generator=generator)
    return centres[groups] + 1.2 * torch.randn(count, WIDTH, generator=generator), groups % CLASSES


def fit(count: int, seed: int, epochs: int) -> dict[str, float]:
    """Fit with ten labels of each class, and name the others."""
    from semimetric import SemiMetric

    torch.set_num_threads(1)
    points, classes = mixture(count, seed)
    labels = torch.full((count,), -1)
    for number in range(CLASSES):
        chosen = (classes == number).nonzero().flatten()[: 10 * LABELS : 10]
        labels[chosen] = number
    began = time.process_time()
    model = SemiMetric(random_state=seed, epochs=epochs).fit(points.numpy(), labels.numpy())
    seconds = time.process_time() - began
    right = torch.as_tensor(model.label_distributions_).argmax(1) == classes
    return {"cpu_s": seconds, "accuracy": 100 * float(right[labels < 0].double().mean())}


def in_a_process(folder: Path, count: int, seed: int, epochs: int) -> dict[str, Any]:
    """One fit by the sources in ``folder``."""
    command = [sys.executable, __file__, "--one", "--count", str(count), "--seeds", str(seed)]
    command += ["--epochs", str(epochs)]
    found = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": str(folder)}, capture_output=True, text=True, check=True
    )
    result: dict[str, Any] = json.loads(found.stdout.splitlines()[-1])
    return result


def parser() -> argparse.ArgumentParser:
    """The command line."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--count", type=int, default=20_000)
    options.add_argument("--seeds", type=int, nargs="+", default=[0])
    options.add_argument("--epochs", type=int, default=3)
    options.add_argument("--other", type=Path)
    options.add_argument("--one", action="store_true", help="Fit once here and print.")
    options.add_argument("--out", type=Path)
    return options


def main() -> None:
    """Measure, print, write."""
    args = parser().parse_args()
    if args.one:
        print(json.dumps(fit(args.count, args.seeds[0], args.epochs)))
        return
    rows = []
    for seed in args.seeds:
        here = in_a_process(Path(__file__).resolve().parents[1], args.count, seed, args.epochs)
        row: dict[str, Any] = {"count": args.count, "epochs": args.epochs, "seed": seed, "here": here}
        if args.other:
            row["other"] = in_a_process(args.other.resolve(), args.count, seed, args.epochs)
            row["faster"] = row["other"]["cpu_s"] / here["cpu_s"]
        rows.append(row)
        print(row, flush=True)
        write_result(args.out, machine() | {"rows": rows})


if __name__ == "__main__":
    main()
