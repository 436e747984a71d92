"""From examples to unit-norm features."""

from __future__ import annotations

import torch
from torch import Tensor, nn

NORM_FLOOR = 1e-12
"""A network whose last units are all dead returns zero; the floor keeps its direction at zero, not at NaN."""


def unit_features(outputs: Tensor) -> Tensor:
    """Rows of encoder outputs scaled to unit length; a zero row stays zero."""
    return nn.functional.normalize(outputs, dim=1, eps=NORM_FLOOR)


@torch.no_grad()
def encode(encoder: nn.Module, inputs: Tensor, chunk: int = 1024) -> Tensor:
    """Unit features (N, d) of all inputs in evaluation mode, by chunks; the encoder's mode is restored."""
    was_training = encoder.training
    encoder.eval()
    device = next((p.device for p in encoder.parameters()), inputs.device)
    pieces = [unit_features(encoder(piece.to(device))) for piece in inputs.split(chunk)]
    encoder.train(was_training)
    return torch.cat(pieces)
