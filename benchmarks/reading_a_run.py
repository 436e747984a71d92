"""Seconds that the check of digests adds to reading a run: a small one, one of many examples, one of a large model."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch
from sklearn.datasets import load_digits

import semimetric as sm
from semimetric.core import manifest
from semimetric.graph import Posteriors
from semimetric.model.folder import load_run

CLASSES = 10


def digits(run: Path) -> None:
    """The digits of scikit-learn, every tenth of them with a label."""
    features, classes = load_digits(return_X_y=True)
    model = sm.SemiMetric(epochs=1, random_state=0)
    sm.save(model.fit(features, np.where(np.arange(len(classes)) % 10 == 0, classes, -1)), run)


def many_examples(run: Path, count: int = 100_000, width: int = 64) -> None:
    """Embeddings of ``width`` dimensions, drawn at random."""
    model = _small(width, width)
    draw = torch.Generator().manual_seed(0)
    fitted = model.fitted_
    labels = torch.full((count,), -1)
    labels[: len(fitted.labels)] = fitted.labels
    shares = torch.rand(count, len(fitted.posteriors.classes), generator=draw, dtype=torch.float64)
    found = Posteriors(fitted.posteriors.classes, shares, shares.amax(1))
    embeddings = torch.randn(count, width, generator=draw, dtype=torch.float64)
    fitted = dataclasses.replace(fitted, embeddings=embeddings, labels=labels, posteriors=found)
    model.adopt(fitted, model.classes_, model.plan_)
    sm.save(model, run)


def large_model(run: Path, width: int = 5000) -> None:
    """A model that is a matrix of ``width`` x ``width``."""
    sm.save(_small(width, 4), run)


def _small(width: int, components: int) -> sm.SemiMetric:
    draw = np.random.default_rng(0)
    features, labels = draw.normal(size=(200, width)), np.arange(200) % (CLASSES + 1) - 1
    return sm.SemiMetric(encoder="linear", epochs=1, n_components=components, random_state=0).fit(features, labels)


RUNS: dict[str, Callable[[Path], None]] = {
    "digits": digits,
    "100,000 examples x 64": many_examples,
    "a model of 100 MB": large_model,
}


def seconds(run: Path) -> tuple[float, float]:
    """Time and CPU time of all threads to read a run, by a process that has not read it before."""
    manifest._digests.clear()
    manifest._contents.clear()
    began = time.perf_counter(), time.process_time()
    load_run(run, "cpu")
    return time.perf_counter() - began[0], time.process_time() - began[1]


def measured(make: Callable[[Path], None], repeats: int) -> dict[str, float]:
    """Median times with and without the check, in turns, and the median of what it adds."""
    with tempfile.TemporaryDirectory() as place:
        run = Path(place) / "run"
        make(run)
        size = sum(path.stat().st_size for path in run.iterdir())
        checked, unchecked = [], []
        for _ in range(repeats):
            checked.append(seconds(run))
            with (
                patch.object(manifest.Manifest, "check", lambda *_: None),
                patch.object(manifest.Manifest, "check_ahead", lambda *_: None),
            ):
                unchecked.append(seconds(run))
    found: dict[str, float] = {"bytes": size}
    for name, times in {"checked": checked, "unchecked": unchecked, "added": np.subtract(checked, unchecked)}.items():
        time_, cpu = np.median(times, axis=0)
        found |= {f"{name}_seconds": round(float(time_), 4), f"{name}_cpu_seconds": round(float(cpu), 4)}
    return found


def parser() -> argparse.ArgumentParser:
    """The options."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--repeats", type=int, default=25)
    options.add_argument("--out", type=Path)
    return options


def main() -> None:
    """Print and write the times."""
    given = parser().parse_args()
    warnings.simplefilter("ignore")
    facts = {
        "command": f"python benchmarks/reading_a_run.py --repeats {given.repeats}",
        "threads": torch.get_num_threads(),
        "runs": {name: measured(make, given.repeats) for name, make in RUNS.items()},
    }
    sys.stdout.write(json.dumps(facts, indent=1) + "\n")
    if given.out is not None:
        given.out.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
