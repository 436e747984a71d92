"""Features of photographs averaged with those of their mirror images, by a frozen network; two cores.

    python benchmarks/mirror_photographs.py --data-dir DATA --encoder efficientnet-lite2 --weights lite2.pth --side 224
    python benchmarks/mirror_photographs.py --data-dir DATA --encoder googlenet-rmac --weights googlenet.npz --side 224

Every second training class of CUB-200 is scored, with all dimensions and after a random projection to 128. Test classes
are not touched.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from jobs import machine, write_result
from torch import Tensor

from semimetric.data.photographs.photos import read_photos
from semimetric.data.preprocess import build_preprocess
from semimetric.encoders import Mirrored, build_encoder, encode
from semimetric.evaluation import evaluate
from semimetric.metric import random_orthonormal

WIDTH, PART = 128, 256


def photographs(folders: list[Path], side: int) -> tuple[Tensor, Tensor]:
    """Photographs (N, 3, side, side) of all folders as bytes, and the number of the folder of each."""
    paths = [sorted(folder.iterdir()) for folder in folders]
    classes = torch.cat([torch.full((len(mine),), number) for number, mine in enumerate(paths)])
    read, _ = read_photos([path for mine in paths for path in mine], classes, side, "crop", 2, None)
    return read.inputs[:], read.labels


def scores(features: Tensor, classes: Tensor) -> dict[str, dict[str, float]]:
    """NMI and Recall@K in all dimensions, and in 128."""
    projection = random_orthonormal(features.shape[1], WIDTH, torch.Generator().manual_seed(0))
    found = {"all": features, str(WIDTH): features.double() @ projection}
    return {name: evaluate(embeddings, classes) for name, embeddings in found.items()}


def lines(found: dict[str, dict[str, dict[str, float]]]) -> list[list[str]]:
    """A line for each way, NMI / R@1 in per cent."""
    cells = {
        way: [f"{100 * score['nmi']:.1f} / {100 * score['recall@1']:.1f}" for score in mine.values()]
        for way, mine in found.items()
    }
    return [["features", "all dimensions", f"{WIDTH} dimensions"], *([way, *mine] for way, mine in cells.items())]


def parser() -> argparse.ArgumentParser:
    """The command line."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--data-dir", type=Path, required=True)
    options.add_argument("--encoder", default="efficientnet-lite2")
    options.add_argument("--weights", type=Path, required=True)
    options.add_argument("--side", type=int, default=224)
    options.add_argument("--out", type=Path)
    return options


def main() -> None:
    """Score both ways, print and write."""
    args = parser().parse_args()
    torch.set_num_threads(2)
    images, classes = photographs(sorted((args.data_dir / "cub200" / "train").iterdir())[::2], args.side)
    network = build_encoder(args.encoder, tuple(images.shape[1:]), 0, weights=args.weights).eval()
    prepared = build_preprocess("imagenet", images)
    found: dict[str, Any] = {}
    for way, encoder in (("of the image", network), ("averaged with the mirror image's", Mirrored(network).eval())):
        rows = torch.cat([encode(encoder, prepared(part), precision="auto") for part in images.split(PART)])
        found[way] = scores(rows, classes)
    write_result(args.out, machine() | {"photographs": len(images), "table": lines(found), "scores": found})
    print("\n".join("| " + " | ".join(line) + " |" for line in lines(found)))


if __name__ == "__main__":
    main()
