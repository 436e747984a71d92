"""Seconds that the check of digests adds to reading a run with a large model."""

from __future__ import annotations

import argparse
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

import semimetric as sm
from semimetric.core import manifest
from semimetric.model.folder import load_run


def written(folder: Path, width: int) -> Path:
    """A run whose model is a matrix of ``width`` x ``width``."""
    draw = np.random.default_rng(0)
    features, labels = draw.normal(size=(40, width)), np.arange(40) % 4 - 1
    model = sm.SemiMetric(encoder="linear", epochs=1, n_components=4, random_state=0)
    sm.save(model.fit(features, labels), folder / "run")
    return folder / "run"


def seconds(call: Callable[[], object], repeats: int) -> list[float]:
    """Each time of so many calls, none of which knows the digests of the call before."""
    found = []
    for _ in range(repeats):
        manifest._digests.clear()
        began = time.perf_counter()
        call()
        found.append(time.perf_counter() - began)
    return found


def parser() -> argparse.ArgumentParser:
    """The options."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--width", type=int, default=5000)
    options.add_argument("--repeats", type=int, default=15)
    options.add_argument("--out", type=Path)
    return options


def main() -> None:
    """Print and write the times with and without the check, in turns."""
    given = parser().parse_args()
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as place:
        run = written(Path(place), given.width)
        size = sum(path.stat().st_size for path in run.iterdir())
        times: dict[str, list[float]] = {"checked": [], "unchecked": []}
        for _ in range(given.repeats):
            times["checked"] += seconds(lambda: load_run(run, "cpu"), 1)
            with (
                patch.object(manifest.Manifest, "check", lambda *_: None),
                patch.object(manifest.Manifest, "check_ahead", lambda *_: None),
            ):
                times["unchecked"] += seconds(lambda: load_run(run, "cpu"), 1)
        best = {name: round(min(each), 4) for name, each in times.items()}
        middle = {name: round(float(np.median(each)), 4) for name, each in times.items()}
    facts = {
        "command": f"python benchmarks/reading_a_run.py --width {given.width} --repeats {given.repeats}",
        "bytes": size,
        "threads": torch.get_num_threads(),
        "fastest": best,
        "median": middle,
    }
    sys.stdout.write(json.dumps(facts, indent=1) + "\n")
    if given.out is not None:
        given.out.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
