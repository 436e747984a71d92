"""The same seeds must give the same scores: records what a checkout computes, and compares two records.

    python benchmarks/same_behaviour.py record --checkout PATH --out before.json
    python benchmarks/same_behaviour.py compare before.json after.json

A record holds, for each method, its scores on `digits` through the command line and its predictions on the same data
through ``SemiMetric``, and for the linear estimators their metric. It runs on one CPU thread.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

METHODS = (
    "consensus",
    "affinity-triplets",
    "lrml",
    "seraph",
    "isdml",
    "apllr",
    "apit",
    "triplet",
    "angular",
    "exemplar",
    "rotation",
    "instance",
    "deepcluster",
    "synthetic",
)

ESTIMATOR = """
import json, sys, warnings
import numpy as np, torch
torch.set_num_threads(1)
warnings.simplefilter("ignore")
from sklearn.datasets import load_digits
import semimetric
X, y = load_digits(return_X_y=True)
rows = np.random.default_rng(0).permutation(len(X))[:600]
X, y = X[rows] / 16.0, y[rows]
labels = np.where(np.arange(600) < 100, y, -1)
method = sys.argv[1]
if method.isupper():
    model = getattr(semimetric, method)(random_state=0).fit(X, labels)
else:
    images = X.reshape(-1, 8, 8) if method == "rotation" else X
    model = semimetric.SemiMetric(method, epochs=2, random_state=0).fit(images, labels)
    X = images
print(json.dumps({"accuracy": model.score(X, y), "spread": float(np.square(model.embedding_).mean()),
                  "confidence": float(model.confidence_.mean()),
                  "probability": float(model.predict_proba(X[:50]).max(1).mean())}))
"""


def _run(checkout: Path, words: list[str]) -> dict[str, object]:
    environment = os.environ | {"PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *words], env=environment, cwd=checkout, capture_output=True, text=True, check=False
    )
    if done.returncode:
        return {"failed": done.stderr.strip().splitlines()[-1:]}
    return dict(json.loads(done.stdout.strip().splitlines()[-1]))


def record(checkout: Path, out: Path) -> None:
    """Run everything in a checkout and write its record."""
    found: dict[str, dict[str, object]] = {}
    for method in METHODS:
        with tempfile.TemporaryDirectory() as folder:
            words = ["-m", "semimetric", "fit", "--dataset", "digits", "--method", method, "--seed", "0", "--threads"]
            outcome = _run(checkout, [*words, "1", "--device", "cpu", "--json", "--out", f"{folder}/run"])
        kept = ("initial", "final", "best_epoch", "epochs", "failed")
        found[f"fit {method}"] = {name: outcome[name] for name in kept if name in outcome}
        found[f"SemiMetric {method}"] = _run(checkout, ["-c", ESTIMATOR, method])
        print(method, found[f"fit {method}"], flush=True)
    for name in ("LRML", "SERAPH", "ISDML", "APLLR", "APIT"):
        found[name] = _run(checkout, ["-c", ESTIMATOR, name])
    out.write_text(json.dumps(found, indent=2) + "\n")


def compare(before: Path, after: Path, tolerance: float) -> int:
    """Print what differs by more than ``tolerance``, and how many values agree."""
    olds, news = (_flat(json.loads(path.read_text())) for path in (before, after))
    differing = [name for name in olds if not _same(olds[name], news.get(name), tolerance)]
    for name in differing:
        print(f"{name}: {olds[name]} before, {news.get(name)} after")
    print(f"{len(olds) - len(differing)} of {len(olds)} values agree within {tolerance:g}")
    return 1 if differing else 0


def _flat(value: object, name: str = "") -> dict[str, object]:
    if not isinstance(value, dict):
        return {name: value}
    return {key: leaf for part, inner in value.items() for key, leaf in _flat(inner, f"{name} {part}".strip()).items()}


def _same(old: object, new: object, tolerance: float) -> bool:
    if isinstance(old, int | float) and isinstance(new, int | float):
        return abs(old - new) <= tolerance
    return old == new


def parser() -> argparse.ArgumentParser:
    """The command line."""
    options = argparse.ArgumentParser(description=__doc__)
    commands = options.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record")
    recording.add_argument("--checkout", type=Path, default=Path())
    recording.add_argument("--out", type=Path, required=True)
    comparing = commands.add_parser("compare")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    comparing.add_argument("--tolerance", type=float, default=1e-6)
    return options


def main() -> int:
    """The command line."""
    words = parser().parse_args()
    if words.command == "compare":
        return compare(words.before, words.after, words.tolerance)
    record(words.checkout.resolve(), words.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
