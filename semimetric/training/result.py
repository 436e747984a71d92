"""The result of a training run."""

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
    """Result of training; ``encoder`` is the module passed in, with the best weights.

    ``guards`` names the safeguards that were active. ``trust`` is the estimated accuracy of pseudo-labels, if any.
    """

    encoder: nn.Module
    metric: Metric
    best_epoch: int
    epochs: int
    interrupted: bool
    seconds: float
    guards: tuple[str, ...]
    trust: dict[str, Any] | None

    def embed(self, inputs: Any) -> Tensor:
        """Embeddings (N, l) of inputs that are preprocessed like the training data."""
        device = self.metric.factor.device
        return self.metric.transform(encode(self.encoder, as_tensor(inputs, "inputs").float().to(device)))
