from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from semimetric.methods import build_method
from semimetric.training import Run, Trainer, TrainingData, TrainingSettings

MakeTrainer = Callable[..., Trainer]


@pytest.fixture
def make_trainer(make_clusters) -> MakeTrainer:
    """A trainer on 90 clustered vectors of 3 classes, 4 labelled in each, with a small network."""

    def make(
        run: Run | None = None, seed: int = 0, validation: bool = False, method: str = "affinity-triplets", **changes
    ):
        points, classes = make_clusters(seed, 90, 12, 3)
        labels = torch.full((90,), -1)
        labels[:12] = classes[:12]
        torch.manual_seed(seed)
        encoder = nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Dropout(0.1), nn.Linear(24, 8))
        withheld = make_clusters(seed, 60, 12, 3) if validation else (None, None)
        data = TrainingData(points, labels, *withheld, classes=classes)
        values = {
            "epochs": 4,
            "epochs_per_partition": 2,
            "partition_size": 30,
            "batch_size": 20,
            "lr": 1e-6,
            "metric_every": "batch",
        }
        chosen = TrainingSettings(**(values | changes))
        return Trainer(encoder, build_method(method, components=4, k=6), data, chosen, seed, run=run)

    return make
