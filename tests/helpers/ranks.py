"""Small trainings that one process or several run alike, and processes that run them together."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from semimetric.core import ranks
from semimetric.core.errors import SemimetricError
from semimetric.encoders.photographs import PhotoTransform
from semimetric.evaluation import evaluate
from semimetric.graph import nearest_neighbors
from semimetric.methods import build_method
from semimetric.training import Progress, Run, Trainer, TrainingData, TrainingSettings

TRAININGS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "consensus": ("consensus", {"k": 5, "components": 4}, {"average": 0.9}),
    "consensus-whitened": ("consensus", {"k": 5, "metric": "whitened"}, {"average": 0.9}),
    "instance": ("instance", {}, {}),
    "stml": ("stml", {}, {"average": 0.9}),
    "stml-principal": ("stml", {"components": 4, "metric": "principal"}, {"average": 0.9, "average_warmup": False}),
    "affinity-triplets": (
        "affinity-triplets",
        {"k": 6, "components": 4},
        {"lr": 1e-4, "metric_every": "batch", "partition_size": 40},
    ),
}
"""A method, its settings and those of its training, by the name of the runs."""


def network() -> nn.Module:
    """Convolutions and vectors, both with batch normalisation."""
    torch.manual_seed(0)
    convolutions = nn.Sequential(nn.Conv2d(1, 6, 3, stride=2), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten())
    return nn.Sequential(convolutions, nn.Linear(54, 16, bias=False), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 8))


def images() -> tuple[Tensor, Tensor]:
    """91 pictures of 8 x 8 around 3 patterns, and their classes: a number that two processes cannot halve."""
    generator = torch.Generator().manual_seed(1)
    classes = torch.arange(91) % 3
    patterns = torch.randn(3, 1, 8, 8, generator=generator)
    return patterns[classes] + 0.7 * torch.randn(91, 1, 8, 8, generator=generator), classes


class At(Progress):
    """Does something after an epoch."""

    def __init__(self, epoch: int, action: Any) -> None:
        self._epoch, self._action = epoch, action

    def epoch(self, record: dict[str, Any]) -> None:
        """Do it."""
        if record["epoch"] == self._epoch:
            self._action()


def train(name: str, folder: Path, progress: Progress | None = None) -> Trainer:
    """Train for two epochs of batches of 21 examples; an unfinished run in ``folder`` is continued."""
    inputs, classes = images()
    labels = torch.where(torch.arange(len(classes)) < 15, classes, -1)
    method, own, changes = TRAININGS[name]
    data = TrainingData(inputs, labels, inputs[:31], classes[:31], classes=classes)
    values = {"epochs": 2, "batch_size": 21, "lr": 0.01, "optimizer": "sgd", "selection": "validation"} | changes
    settings = TrainingSettings(**values)

    def opened() -> Run:
        return Run.open(folder) if folder.exists() else Run.create(folder, {"method": method})

    trainer = Trainer(network(), build_method(method, **own), data, settings, run=opened, progress=progress)
    trainer.fit()
    return trainer


def all_of_it(folder: Path, name: str) -> None:
    """Every training, each copied in the middle, and an evaluation; written under ``name``."""
    torch.use_deterministic_algorithms(True)
    for training in TRAININGS:
        done, half = folder / f"{training}-{name}", folder / f"{training}-{name}-half"
        copy = At(1, lambda done=done, half=half: shutil.copytree(done, half) if ranks.is_first() else None)
        train(training, done, copy)
    inputs, classes = images()
    rows = ranks.in_parts(lambda part: inputs[part].flatten(1).double(), len(inputs))
    assert torch.equal(nearest_neighbors(rows, 5), nearest_neighbors_alone(rows, 5))
    check_draws()
    check_described(folder / "photos")
    with ranks.alone():
        alone = evaluate(rows, classes)
    assert evaluate(rows, classes) == alone


def check_described(folder: Path) -> None:
    """Features of photographs, of which the first and another cannot be decoded, are those of one process."""
    os.environ["SEMIMETRIC_CACHE"] = "off"
    paths = [folder / f"{number}.png" for number in range(7)]
    torch.manual_seed(0)
    transform = PhotoTransform(8, network=nn.Sequential(nn.Flatten(), nn.Linear(192, 4)), name="linear")
    rows, inputs, skipped = transform.read_all(paths, "cpu")
    with ranks.alone():
        all_rows, all_inputs, all_skipped = transform.read(paths, "cpu")
    assert torch.equal(rows, all_rows)
    assert rows.tolist() == [1, 2, 4, 5, 6]
    torch.testing.assert_close(inputs, all_inputs)
    assert skipped == all_skipped


def check_draws() -> None:
    """Random layers draw other numbers on each rank, and all go on alike."""
    with ranks.part_draws(torch.device("cpu")):
        own = torch.rand(1, 4)
    size = ranks.world().size
    assert len(ranks.gathered(own, size).unique(dim=0)) == size
    assert len(ranks.gathered(torch.rand(1, 4), size).unique(dim=0)) == 1


def nearest_neighbors_alone(rows: Tensor, k: int) -> Tensor:
    """The neighbours, as one process computes them."""
    with ranks.alone():
        return nearest_neighbors(rows, k)


def die(folder: Path) -> None:
    """Train until the second process is killed in the second epoch; the first tells how that ended."""
    second = At(1, lambda: os.kill(os.getpid(), signal.SIGKILL))
    try:
        train("consensus", folder, None if ranks.is_first() else second)
    except SemimetricError as error:
        sys.stdout.write(f"{type(error).__name__}: {error}\n")


def start(*arguments: object, count: int = 2) -> list[subprocess.Popen[str]]:
    """Processes that run ``main`` with these arguments as ranks."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    places = [str(Path(__file__).parents[1]), *filter(None, sys.path)]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(places),
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(count),
    }
    command = [sys.executable, "-m", "helpers.ranks", *map(str, arguments)]
    return [
        subprocess.Popen(
            command,
            env=environment | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(count)
    ]


def main(folder: Path) -> None:
    """What each process does: everything, the second half of what one process began, and a death."""
    torch.set_num_threads(1)
    with ranks.joined(on_gpu=False):
        all_of_it(folder, "two")
        train("consensus", folder / "consensus-one-half")
        began = time.monotonic()
        die(folder / "killed")
        sys.stdout.write(f"{time.monotonic() - began:.1f}\n")
        sys.stdout.flush()
        os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
