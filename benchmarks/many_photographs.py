"""Many photographs on one machine: fit, killed when half of them are described, continued, then index and search.

    python benchmarks/many_photographs.py --number 200000 --out benchmarks/results/many_photographs.json

Photographs are 64 x 64 JPEG files of 20 kinds, drawn by one process per processor; ten of each kind are labelled. A
frozen network with random weights describes them: only time, memory and what is done twice are measured, and search is
compared with the known kinds to show that it works. The index is the exact one, which needs no other package. The
commands are those of a user, in processes of their own; the cache of features is a new one.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from jobs import machine, write_result
from PIL import Image

KINDS, LABELLED, SIDE, QUERIES, HITS = 20, 10, 64, 100, 10
DRAWN = 500  # photographs of one task
LOOK = 0.2  # seconds between looks at how many are described


def parser() -> argparse.ArgumentParser:
    """The command line."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--number", type=int, default=200_000)
    options.add_argument("--epochs", type=int, default=2)
    options.add_argument("--device", default="auto")
    options.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    options.add_argument(
        "--work", type=Path, help="folder for everything, deleted at the end; a temporary one if left out"
    )
    options.add_argument("--out", type=Path)
    return options


def draw(folder: Path, side: int, numbers: range) -> None:
    """Write photographs: stripes of a colour, an angle and a width that their kind decides, and noise."""
    y, x = np.mgrid[:side, :side] / side
    for number in numbers:
        kind, draws = number % KINDS, np.random.default_rng(number)
        angle, width = np.pi * (kind % 5) / 5 + draws.normal(0, 0.1), 3 + 2 * (kind // 5)
        waves = np.sin(2 * np.pi * width * (x * np.cos(angle) + y * np.sin(angle)) + draws.uniform(0, 6))
        colour = np.random.default_rng(1000 + kind).uniform(60, 190, 3)
        pixels = colour + 50 * waves[:, :, None] + draws.normal(0, 20, (side, side, 3))
        place = f"kind {kind:02d}" if number < KINDS * LABELLED else "unlabelled"
        image = Image.fromarray(pixels.clip(0, 255).astype(np.uint8))
        image.save(folder / place / f"{number:07d}-{kind:02d}.jpg", quality=85)


def write_photographs(folder: Path, number: int, processes: int, side: int = SIDE) -> None:
    """All photographs of the collection."""
    for name in ("unlabelled", *(f"kind {kind:02d}" for kind in range(KINDS))):
        (folder / name).mkdir(parents=True)
    parts = [range(start, min(start + DRAWN, number)) for start in range(0, number, DRAWN)]
    with ProcessPoolExecutor(processes) as pool:
        list(pool.map(draw, [folder] * len(parts), [side] * len(parts), parts))


def write_weights(path: Path) -> None:
    """A GoogLeNet with random weights, in a file as torchvision's come."""
    import torch
    from safetensors.torch import save_file

    from semimetric.encoders.googlenet import GoogLeNet, _names_here

    torch.manual_seed(0)
    theirs = {ours: name for name, ours in _names_here(batch_norm=True).items()}
    save_file({theirs.get(name, name): tensor for name, tensor in GoogLeNet(True).state_dict().items()}, path)


def described(cache: Path) -> int:
    """Photographs whose features are in the cache."""
    if not cache.exists():
        return 0
    try:
        with closing(sqlite3.connect(f"file:{cache}?mode=ro", uri=True, timeout=5)) as db:
            return int(db.execute("SELECT max(rowid) FROM features").fetchone()[0] or 0)
    except sqlite3.OperationalError:  # it is being made
        return 0


class Steps:
    """Runs commands, and keeps what each took."""

    def __init__(self, work: Path) -> None:
        self.work, self.rows = work, {}
        self.cache = work / "cache" / "features.sqlite"
        self.environment = os.environ | {"SEMIMETRIC_CACHE": str(self.cache.parent)}

    @contextmanager
    def timed(self, name: str) -> Iterator[dict[str, Any]]:
        """Keep the seconds of a step, and what else is put into the row."""
        row: dict[str, Any] = {}
        began = time.perf_counter()
        yield row
        self.rows[name] = {"seconds": time.perf_counter() - began} | row
        print(f"{name}: {self.rows[name]['seconds']:.1f} s", file=sys.stderr, flush=True)

    def start(self, *words: object) -> subprocess.Popen[str]:
        """Begin a command."""
        command = [sys.executable, "-m", "semimetric", *map(str, words)]
        return subprocess.Popen(command, env=self.environment, stdout=subprocess.PIPE, text=True)

    def run(self, *words: object) -> dict[str, Any]:
        """Run a command to its end, and return what it tells with --json."""
        done = self.start(*words, "--json")
        told = done.communicate()[0]
        if done.returncode:
            raise SystemExit(f"semimetric {' '.join(map(str, words))} ended with {done.returncode}.")
        return dict(json.loads(told.splitlines()[-1]))

    def killed_at(self, number: int, *words: object) -> int:
        """Kill a command when so many photographs are described; how many were."""
        process = self.start(*words)
        while process.poll() is None and described(self.cache) < number:
            time.sleep(LOOK)
        if process.poll() is not None:
            raise SystemExit("the fit ended before half of the photographs were described.")
        process.send_signal(signal.SIGKILL)
        process.wait()
        return described(self.cache)


def peak_of_children() -> float:
    """Largest resident memory of any command so far, in MiB."""
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024


def measure(args: argparse.Namespace, work: Path) -> dict[str, Any]:
    """All steps."""
    steps, photos, run, index = Steps(work), work / "photos", work / "run", work / "photos.npy"
    with steps.timed("draw photographs"):
        write_photographs(photos, args.number, args.processes)
        write_weights(work / "network.safetensors")
    fit = ["fit", photos, "-o", run, "--encoder", "googlenet", "--weights", work / "network.safetensors"]
    fit += ["--side", SIDE, "--epochs", args.epochs, "--device", args.device, "--resume", "-q"]
    with steps.timed("fit, killed") as row:
        before = row["described"] = steps.killed_at(args.number // 2, *fit)
    with steps.timed("fit, continued") as row:
        outcome = steps.run(*fit)
        row |= {"described": described(steps.cache) - before, "training_seconds": outcome["seconds"]}
    peak = peak_of_children()
    with steps.timed("index"):
        steps.run("index", run, "--to", index)
    queries = sorted((photos / "unlabelled").iterdir())[:: max(1, args.number // QUERIES)]
    with steps.timed("search") as row:
        found = steps.run("search", run, *queries, "--index", index, "-k", HITS + 1, "--device", args.device)
        row |= {"queries": len(queries), "same_kind": same_kind(found)}
    left = steps.rows["fit, continued"]["described"] / args.number
    return {"rows": steps.rows, "work_left": left, "fit_peak_mib": peak, "peak_mib": peak_of_children()}


def same_kind(found: dict[str, Any]) -> float:
    """Share of hits of the query's kind, without the query itself."""
    pairs = [(Path(query).stem, Path(line["name"]).stem) for query, lines in found["hits"].items() for line in lines]
    others = [(query, hit) for query, hit in pairs if query != hit]
    return sum(query[-2:] == hit[-2:] for query, hit in others) / max(1, len(others))


def main() -> None:
    """Measure, write and print."""
    args = parser().parse_args()
    if args.number < 2 * KINDS * LABELLED:
        raise SystemExit(f"--number must be at least {2 * KINDS * LABELLED}.")
    work = Path(tempfile.mkdtemp(dir=args.work))
    try:
        facts = measure(args, work)
    finally:
        shutil.rmtree(work)
    facts = {"number": args.number, "processes": args.processes, "epochs": args.epochs} | facts
    facts["seconds"] = sum(row["seconds"] for row in facts["rows"].values())
    write_result(args.out, machine() | facts)
    print(f"| step, {args.number:,} photographs | seconds | |")
    for name, row in facts["rows"].items():
        more = ", ".join(f"{key} {value:.4g}" for key, value in row.items() if key != "seconds")
        print(f"| {name} | {row['seconds']:.1f} | {more} |")
    told = f"work left after the kill {facts['work_left']:.3f}, peak {facts['peak_mib']:.0f} MiB"
    print(f"| all | {facts['seconds']:.1f} | {told} |")


if __name__ == "__main__":
    main()
