"""Fine-tuning of a pretrained network by ``consensus``: batch statistics of every batch, or those of the network.

    python benchmarks/freeze_norm.py --data-dir DATA --seeds 0,1,2 --out benchmarks/results/freeze_norm.json

Twenty training classes of CUB-200, 30 photographs of each at 128 pixels, five of them labelled, fine-tune
EfficientNet-Lite2 with the settings for photographs of many classes, in batches of 64. Twenty other training classes
are scored after every epoch. Test classes are not touched. A seed says which classes; a run takes five minutes on one
core.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jobs import machine, write_result
from torch import Tensor

from semimetric import Trainer, TrainingData, build_method, training_settings
from semimetric.data.photographs.photos import read_photos
from semimetric.data.preprocess import build_preprocess
from semimetric.encoders import build_encoder, packaged_weights
from semimetric.methods.consensus_defaults import FINE_TUNING
from semimetric.training import Silent

CLASSES, PHOTOGRAPHS, LABELS, SIDE, WIDTH, BATCH = 20, 30, 5, 128, 128, 64
ENCODER = "efficientnet-lite2"


class Photographs(NamedTuple):
    """Scaled photographs (N, 3, SIDE, SIDE) and their classes (N,)."""

    inputs: Tensor
    classes: Tensor


def photographs(folders: list[Path]) -> Photographs:
    """The first photographs of each class."""
    paths = [sorted(folder.iterdir())[:PHOTOGRAPHS] for folder in folders]
    classes = torch.cat([torch.full((len(mine),), number) for number, mine in enumerate(paths)])
    read, _ = read_photos([path for mine in paths for path in mine], classes, SIDE, "crop", 2, None)
    inputs = read.inputs[:]
    return Photographs(build_preprocess("imagenet", inputs)(inputs), read.labels)


def few_labels(classes: Tensor, generator: torch.Generator) -> Tensor:
    """Five labels of each class, -1 elsewhere."""
    labels = torch.full_like(classes, -1)
    for number in range(CLASSES):
        mine = (classes == number).nonzero().flatten()
        labels[mine[torch.randperm(len(mine), generator=generator)[:LABELS]]] = number
    return labels


def scores_of_epochs(data: TrainingData, seed: int, freeze: bool) -> list[dict[str, float]]:
    """NMI and Recall@1 of the other classes after every epoch, in per cent."""
    method_names = ("gamma", "relative", "metric", "augmentation", "instance")
    own = {name: FINE_TUNING[name] for name in method_names}
    trained = {name: value for name, value in FINE_TUNING.items() if name not in own} | {"freeze_norm": freeze}
    training = training_settings(
        "consensus", **trained | {"batch_size": BATCH, "hold_back": 0.0, "selection": "validation"}
    )
    encoder = build_encoder(ENCODER, (3, SIDE, SIDE), 0, weights=packaged_weights(ENCODER))
    found: list[dict[str, float]] = []

    class Keep(Silent):
        def epoch(self, record: dict[str, Any]) -> None:
            found.append({name: 100 * record[f"selection_{name}"] for name in ("nmi", "recall@1")})

    Trainer(encoder, build_method("consensus", components=WIDTH, **own), data, training, seed, progress=Keep()).fit()
    return found


def table(runs: list[dict[str, Any]]) -> list[str]:
    """A line for each way, with the mean over seeds after every epoch."""
    lines = []
    for freeze in (False, True):
        mine = [run["epochs"] for run in runs if run["freeze_norm"] == freeze]
        cells = [
            " / ".join(f"{statistics.mean(score[name] for score in epoch):.1f}" for name in ("nmi", "recall@1"))
            for epoch in zip(*mine, strict=True)
        ]
        lines.append(f"| {'of the network' if freeze else 'of every batch'} | {' | '.join(cells)} |")
    return lines


def parser() -> argparse.ArgumentParser:
    """The command line."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--data-dir", type=Path, required=True)
    options.add_argument("--seeds", default="0,1,2")
    options.add_argument("--out", type=Path)
    return options


def main() -> None:
    """Run both ways for each seed, print and write."""
    args = parser().parse_args()
    torch.set_num_threads(1)
    folders = sorted((args.data_dir / "cub200" / "train").iterdir())
    runs: list[dict[str, Any]] = []
    for seed in map(int, args.seeds.split(",")):
        generator = torch.Generator().manual_seed(seed)
        drawn = [folders[place] for place in torch.randperm(len(folders), generator=generator)[: 2 * CLASSES].tolist()]
        learned, others = photographs(drawn[:CLASSES]), photographs(drawn[CLASSES:])
        data = TrainingData(learned.inputs, few_labels(learned.classes, generator), others.inputs, others.classes)
        for freeze in (False, True):
            epochs = scores_of_epochs(data, seed, freeze)
            runs.append({"seed": seed, "freeze_norm": freeze, "epochs": epochs})
            print(seed, freeze, [f"{epoch['nmi']:.1f} / {epoch['recall@1']:.1f}" for epoch in epochs], flush=True)
            write_result(args.out, machine() | {"runs": runs})
    print("\n".join(table(runs)))


if __name__ == "__main__":
    main()
