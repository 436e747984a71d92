"""Memory and speed of training on photographs: kept as floats, as bytes in memory, and as bytes in a file.

    python benchmarks/photo_memory.py --number 2000 --side 224 --out benchmarks/results/photo_memory.json

Each way has a process of its own, and random pixels, since decoding is the same for all. ``bytes_each`` is the largest
resident memory with all photographs, less that with half of them, divided by the rest; ``grown_mib`` is what all
of it took. ``per_second`` are photographs of a training epoch. The file is read through the page cache.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch
from jobs import machine, write_result
from torch import nn

from semimetric.data import build_preprocess, stored
from semimetric.data.preprocess import scaled
from semimetric.data.stored import Images, PixelFile, placed
from semimetric.encoders import build_encoder
from semimetric.methods import build_method
from semimetric.training import Silent, Trainer, TrainingData, TrainingSettings, choose_device

WAYS = ("floats", "bytes", "file")
FILLED = 256  # photographs that are drawn at a time


class Seconds(Silent):
    """Keeps how long each epoch took."""

    def __init__(self) -> None:
        self.of_epochs: list[float] = []

    def epoch(self, record: dict[str, Any]) -> None:
        """Keep the seconds of an epoch with batches."""
        if record["epoch"]:
            self.of_epochs.append(record["seconds"])


def parser() -> argparse.ArgumentParser:
    """The command line."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--number", type=int, default=2000)
    options.add_argument("--side", type=int, default=224)
    options.add_argument("--encoder", default="pooled", help="pooled: one linear layer on pooled pixels, for memory")
    options.add_argument("--epochs", type=int, default=3)
    options.add_argument("--device", default="auto")
    options.add_argument("--out", type=Path)
    return options


def encoder_of(args: argparse.Namespace) -> nn.Module:
    """The network that is trained; the pooled one has next to no activations."""
    if args.encoder != "pooled":
        return build_encoder(args.encoder, (3, args.side, args.side), 0)
    torch.manual_seed(0)
    return nn.Sequential(nn.AdaptiveAvgPool2d(8), nn.Flatten(), nn.Linear(192, 64))


def pixels_of(args: argparse.Namespace, way: str) -> torch.Tensor | Images:
    """Random photographs, in memory or in a file."""
    shape = (3, args.side, args.side)
    kept = PixelFile(args.number, shape) if way == "file" else torch.empty(args.number, *shape, dtype=torch.uint8)
    draws = torch.Generator().manual_seed(0)
    for start in range(0, args.number, FILLED):
        some = torch.randint(0, 256, (min(FILLED, args.number - start), *shape), dtype=torch.uint8, generator=draws)
        if isinstance(kept, PixelFile):
            kept.write(start, some)
        else:
            kept[start : start + len(some)] = some
    return Images(kept) if isinstance(kept, PixelFile) else kept


def measure(args: argparse.Namespace, way: str, number: int) -> dict[str, float]:
    """Memory and speed of one way to keep so many photographs."""
    args.number = number
    device = choose_device(args.device)
    stored.MOST_FLOATS = sys.maxsize if way == "floats" else 0
    torch.zeros(1, device=device)
    encoder = encoder_of(args)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    inputs = placed(pixels_of(args, way), device)
    ready = scaled(build_preprocess("imagenet", inputs), inputs)
    labels = torch.where(torch.arange(args.number) % 2 == 0, torch.arange(args.number) % 10, -1)
    settings = TrainingSettings(epochs=args.epochs, optimizer="adamw", lr=1e-3, batch_size=64, selection="last")
    times = Seconds()
    method = build_method("triplet", components=32)
    Trainer(encoder, method, TrainingData(ready, labels), settings, 0, device, progress=times).fit()
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    on_gpu = torch.cuda.max_memory_allocated() if device.type == "cuda" else 0
    return {
        "grown_mib": grown / 1024,
        "gpu_mib": on_gpu / 2**20,
        "per_second": args.number / 2 / min(times.of_epochs),
    }


def in_a_process(args: argparse.Namespace, way: str, number: int) -> dict[str, float]:
    """What ``measure`` finds in a new process."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(measure, args, way, number).result()


def main() -> None:
    """Measure all ways in turn, print and write the table."""
    args = parser().parse_args()
    rows, few = {}, args.number // 2
    for way in WAYS:
        less, rows[way] = (in_a_process(args, way, number) for number in (few, args.number))
        for place in ("", "gpu_"):
            grown = rows[way][f"{place or 'grown_'}mib"] - less[f"{place or 'grown_'}mib"]
            rows[way][f"{place}bytes_each"] = 2**20 * grown / (args.number - few)
        rows[way]["of_floats"] = rows[way]["per_second"] / rows["floats"]["per_second"]
    facts = {"number": args.number, "side": args.side, "encoder": args.encoder}
    write_result(args.out, machine() | facts | {"rows": rows})
    print("| kept as | bytes each | on the GPU | grown MiB | photographs/s | of floats |")
    for way, row in rows.items():
        values = (row["bytes_each"], row["gpu_bytes_each"], row["grown_mib"], row["per_second"])
        print(f"| {way} | {' | '.join(f'{value:,.0f}' for value in values)} | {row['of_floats']:.2f} |")


if __name__ == "__main__":
    main()
