"""Memory of opening a run and of one search in it, exactly and through an index, per row of its embeddings.

    python benchmarks/open_run.py --number 100000 --width 256 --out benchmarks/results/open_run.json

A small run is fitted on a table, and then given many rows. Each way has a process of its own, once with all rows and
once with a tenth; the difference of their largest resident memories, divided by the rows between, is what a row takes.
``in_l`` is the same in units of the width l.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import torch
from jobs import machine, write_result

WAYS = ("open", "exact search", "search through an index")


def parser() -> argparse.ArgumentParser:
    """The command line."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--number", type=int, default=100_000)
    options.add_argument("--width", type=int, default=256)
    options.add_argument("--index", default=".faiss", help="ending of the index, which names its kind")
    options.add_argument("--out", type=Path)
    return options


def write_run(folder: Path, number: int, width: int) -> Path:
    """A run with so many rows."""
    import semimetric
    from semimetric.training import Run

    rows = np.random.default_rng(0).normal(size=(60, width))
    run = folder / f"run {number}"
    semimetric.save(semimetric.SemiMetric("lrml", random_state=0).fit(rows, np.arange(60) % 3), run)
    opened = Run.open(run)
    draws = torch.Generator().manual_seed(0)
    examples, state = opened.read_tensors("examples.safetensors")
    embeddings = torch.randn(number, width, generator=draws).to(examples["embeddings"].dtype)
    labels = torch.where(torch.arange(number) < 60, torch.arange(number) % 3, -1)
    shares = torch.full((number, 3), 1 / 3, dtype=torch.float64)
    parts = {"embeddings": embeddings, "labels": labels, "classes": examples["classes"], "shares": shares}
    opened.write_tensors("examples.safetensors", parts | {"confidence": shares[:, 0].clone()}, state)
    names = [f"row {row}" for row in range(number)]
    opened.write("examples.json", opened.read("examples.json") | {"names": names})
    opened.seal()
    np.save(folder / "query.npy", embeddings[5:6].numpy())
    return run


def build(folder: Path, number: int, width: int, ending: str) -> None:
    """A run and its index."""
    from semimetric.model.folder import load_run
    from semimetric.search import build_index

    run = write_run(folder, number, width)
    build_index(folder / f"{number}{ending}", load_run(run, "cpu").fitted.embeddings)


def measure(folder: Path, number: int, ending: str, way: str) -> dict[str, float]:
    """Largest memory and time of one way."""
    from semimetric.model.folder import load_run
    from semimetric.serve.search import search_run

    torch.set_num_threads(1)
    began = time.perf_counter()
    loaded = load_run(folder / f"run {number}", "cpu")
    if way != "open":
        place = None if way == "exact search" else str(folder / f"{number}{ending}")
        found, _ = search_run(loaded, [folder / "query.npy"], 5, place)
        assert len(next(iter(found.values()))) == 5
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"seconds": time.perf_counter() - began, "peak_bytes": 1024 * peak}


def main() -> None:
    """Measure all ways, print and write the table."""
    args = parser().parse_args()
    few, rows = args.number // 10, {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)

        def apart(function: object, *given: object) -> dict[str, float]:
            with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
                return pool.submit(function, folder, *given).result()  # type: ignore[arg-type]

        for number in (few, args.number):
            apart(build, number, args.width, args.index)
        for way in WAYS:
            less, more = (apart(measure, number, args.index, way) for number in (few, args.number))
            each = (more["peak_bytes"] - less["peak_bytes"]) / (args.number - few)
            rows[way] = {"bytes_each": each, "in_l": each / args.width, "seconds": more["seconds"]}
    write_result(args.out, machine() | {"number": args.number, "width": args.width, "rows": rows})
    print("| | bytes a row | in l | seconds |")
    for way, row in rows.items():
        print(f"| {way} | {row['bytes_each']:,.0f} | {row['in_l']:.1f} | {row['seconds']:.2f} |")


if __name__ == "__main__":
    main()
