"""Time and memory of describing photographs, from files on disk to unit descriptors, decoding included.

    python benchmarks/photo_throughput.py PHOTOS --weights googlenet.npz --out photo_throughput.json

``PHOTOS`` is a folder with images in it, however deep. A first pass over a few of them warms up what is compiled once.
"""

from __future__ import annotations

import argparse
import resource
import time
from pathlib import Path

from jobs import machine, write_result

from semimetric.encoders import build_encoder
from semimetric.encoders.photographs import PhotoTransform
from semimetric.training import choose_device

SUFFIXES = {".jpg", ".jpeg", ".png", ".webp"}


def parser() -> argparse.ArgumentParser:
    """The command line."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("photos", type=Path)
    options.add_argument("--encoder", default="googlenet")
    options.add_argument("--weights", type=Path)
    options.add_argument("--side", type=int, default=224)
    options.add_argument("--workers", type=int, help="threads that decode; one per processor unless given")
    options.add_argument("--device", default="auto")
    options.add_argument("--most", type=int, help="take this many photographs only")
    options.add_argument("--out", type=Path)
    return options


def main() -> None:
    """Describe all photographs of a folder, print and write what it took."""
    args = parser().parse_args()
    paths = sorted(path for path in args.photos.rglob("*") if path.suffix.lower() in SUFFIXES)[: args.most]
    network = build_encoder(args.encoder, (3, args.side, args.side), 0, weights=args.weights)
    transform, device = PhotoTransform(args.side, network=network.eval()), choose_device(args.device)
    transform.read(paths[:128], device, workers=args.workers)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.perf_counter()
    rows, _, _ = transform.read(paths, device, workers=args.workers)
    seconds = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    facts = {
        "photographs": len(rows),
        "seconds": seconds,
        "per_second": len(rows) / seconds,
        "grown_mib": (peak - before) / 1024,
        "peak_mib": peak / 1024,
    }
    write_result(args.out, machine() | facts)
    print(" ".join(f"{name} {value:.5g}" for name, value in facts.items()))


if __name__ == "__main__":
    main()
