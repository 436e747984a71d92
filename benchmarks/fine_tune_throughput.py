"""Photographs a second that a network is fine-tuned on, with this code and, beside it, with that of another checkout.

    python benchmarks/fine_tune_throughput.py --before OLD --number 1500 --epochs 3 --out fine_tune_throughput.json

``OLD`` is a folder that holds another version of the package ``semimetric``. Photographs are JPEG files of stripes and
noise, 224 pixels wide and high; the network is GoogLeNet with random weights. Each version fits in its own process,
``--rounds`` times in turn. An epoch is two views of every photograph, a graph and a score. The fastest counts, the
first, in which a GPU records its step, left out.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from jobs import machine, write_result
from many_photographs import write_photographs, write_weights


def parser() -> argparse.ArgumentParser:
    """The command line."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--before", type=Path, help="folder that holds another version of the package")
    options.add_argument("--number", type=int, default=2000)
    options.add_argument("--side", type=int, default=224)
    options.add_argument("--epochs", type=int, default=4)
    options.add_argument("--rounds", type=int, default=1)
    options.add_argument("--device", default="auto")
    options.add_argument("--out", type=Path)
    return options


def epoch_seconds(code: Path, photos: Path, weights: Path, args: argparse.Namespace) -> float:
    """Seconds of the fastest epoch after the first, of a fit with the package in ``code``."""
    with tempfile.TemporaryDirectory() as work:
        run = Path(work) / "run"
        words = ["fit", photos, "-o", run, "--encoder", "googlenet", "--weights", weights, "--fine-tune"]
        words += ["--side", args.side, "--epochs", args.epochs, "--device", args.device]
        environment = os.environ | {"PYTHONPATH": str(code.resolve()), "SEMIMETRIC_CACHE": work}
        subprocess.run(
            [sys.executable, "-m", "semimetric", *map(str, words)], env=environment, cwd=work, check=True, stdout=2
        )
        epochs = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return min(float(epoch["seconds"]) for epoch in epochs if epoch["epoch"] > 1)


def main() -> None:
    """Measure each version, print and write."""
    args = parser().parse_args()
    here = Path(__file__).parent.parent
    versions = ({"before": args.before} if args.before else {}) | {"now": here}
    found: dict[str, list[float]] = {name: [] for name in versions}
    with tempfile.TemporaryDirectory() as work:
        photos, weights = Path(work) / "photos", Path(work) / "network.safetensors"
        write_photographs(photos, args.number, os.cpu_count() or 1, args.side)
        write_weights(weights)
        for _ in range(args.rounds):
            for name, code in versions.items():
                found[name].append(args.number / epoch_seconds(code, photos, weights, args))
    best = {name: max(rates) for name, rates in found.items()}
    facts = {"number": args.number, "side": args.side, "per_second": best, "all": found}
    if args.before:
        facts["ratio"] = best["now"] / best["before"]
    write_result(args.out, machine() | facts)
    print(" ".join(f"{name} {rate:.5g}" for name, rate in best.items()), f"ratio {facts.get('ratio', 1.0):.3f}")


if __name__ == "__main__":
    main()
