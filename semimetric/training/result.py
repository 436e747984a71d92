"""What a training run gives back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from semimetric.core.arrays import as_tensor
from semimetric.encoders import encode
from semimetric.metric import Metric
from semimetric.training.selection import Score


@dataclass(frozen=True)
class Best:
    """The best model so far."""

    epoch: int
    score: Score
    tensors: dict[str, Tensor]


@dataclass(frozen=True)
class TrainingResult:
    """What training gives back; the encoder passed in carries the best weights."""

    encoder: nn.Module
    metric: Metric
    best_epoch: int
    epochs: int
    interrupted: bool
    seconds: float
    guards: tuple[str, ...]
    trust: dict[str, Any] | None

    def embed(self, inputs: Any) -> Tensor:
        """The embedding (N, l) of inputs that are scaled as those of the training were."""
        device = self.metric.factor.device
        return self.metric.transform(encode(self.encoder, as_tensor(inputs, "inputs").float().to(device)))
