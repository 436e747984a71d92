"""Pseudo-labels that are made inside a training step, from the network's answer to the weak view of each example.

The answers are divided by the running mean of all answers, so that no class takes over (distribution alignment), and
weighted by how confident they are compared with recent ones.

References
----------
Sohn et al.: FixMatch. NeurIPS 2020. Berthelot et al.: ReMixMatch. ICLR 2020 (alignment).
Chen et al.: SoftMatch. ICLR 2023 (weights).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

KEPT = 0.999
"""Decay of the running means; less in the first steps, so that they leave their start quickly."""
WARM_UP = 10.0
WIDTH = 2.0
"""Deviations below the mean confidence that a Gaussian weight of exp(-2) stands for."""
LEAST = 1e-6
"""Smallest mean answer and smallest variance that anything is divided by."""


class RunningNames(nn.Module):
    """Running means over steps: of the answers (C,), and mean and variance of the confidence. All are buffers."""

    answers: Tensor
    level: Tensor
    variance: Tensor
    steps: Tensor

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.register_buffer("answers", torch.full((classes,), 1.0 / classes, dtype=torch.float64))
        self.register_buffer("level", torch.tensor(1.0 / classes, dtype=torch.float64))
        self.register_buffer("variance", torch.ones((), dtype=torch.float64))
        self.register_buffer("steps", torch.zeros((), dtype=torch.float64))

    def aligned(self, shares: Tensor) -> Tensor:
        """Answers (n, C) divided by their running mean, each row summing to 1 again."""
        found = shares / self.answers.clamp_min(LEAST)
        return found / found.sum(1, keepdim=True)

    def weights(self, confidence: Tensor) -> Tensor:
        """1 for a confidence (n,) of at least the running mean, and a Gaussian of its distance below it."""
        below = (confidence - self.level).clamp_max(0.0)
        return torch.exp(-below.square() * WIDTH**2 / (2.0 * self.variance.clamp_min(LEAST)))

    @torch.no_grad()
    def follow(self, shares: Tensor, confidence: Tensor, counted: Tensor) -> None:
        """Move the means towards a batch: answers (n, C) and confidence (n,) of the examples that are ``counted``."""
        of = counted.to(shares.dtype)
        count = of.sum().clamp_min(1.0)
        level = (confidence * of).sum() / count
        variance = ((confidence - level).square() * of).sum() / count
        self.steps += 1
        some = of.sum().clamp_max(1.0)  # a batch without unlabelled examples moves nothing
        share = some * (1.0 - (1.0 + self.steps) / (WARM_UP + self.steps)).clamp_min(1.0 - KEPT)
        self.answers += share * ((shares * of[:, None]).sum(0) / count - self.answers)
        self.level += share * (level - self.level)
        self.variance += share * (variance - self.variance)
