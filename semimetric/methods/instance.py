"""Instance discrimination: a view of each example is matched against a memory bank of all embeddings.

The page in ``docs/methods`` has the formulae.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from semimetric.core.checks import check_not_negative, check_positive
from semimetric.core.errors import InputError
from semimetric.core.settings import setting
from semimetric.core.space import Range
from semimetric.data import preset_views
from semimetric.data.stored import Inputs
from semimetric.encoders import unit_features
from semimetric.losses import instance_loss, noise_contrastive_loss, scaled_cosines
from semimetric.methods.base import Needs
from semimetric.methods.baseline import ON_VIEWS, Baseline, Targets, ViewSettings, unit_points
from semimetric.methods.defaults import LR, extended
from semimetric.metric import Metric

ENOUGH_DRAWS = 1000  # noise draws over which the normaliser is estimated, in the first batches
MOST_JUDGED = 2000  # examples, evenly spaced, that ``statistics`` looks up in the bank
MOST_COSINES = 10_000_000  # cosines that ``statistics`` holds at once (40 MB)


@dataclass(frozen=True)
class InstanceSettings(ViewSettings):
    """Hyper-parameters; the original's temperature is 0.07 on ImageNet and 0.1 on CIFAR-10."""

    temperature: float = setting(0.1, "Temperature of the softmax over the bank.")
    noise: int = setting(
        0,
        "Random rows of the bank used as negatives (4096 in the original); 0 uses all rows, which is exact and best up "
        "to 100,000 examples.",
    )
    bank_momentum: float = setting(0.5, "Momentum of the bank: share of the old row that an update keeps.")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self.temperature, "temperature")
        check_not_negative(self.noise, "noise")
        if not 0.0 <= self.bank_momentum < 1.0:
            raise InputError(f"bank_momentum must be in [0, 1), got {self.bank_momentum}.")


class Instance(Baseline[Targets]):
    """Softmax over a bank (N, l) of the unit embeddings of all examples, exact or by noise-contrastive estimation.

    Row i of ``bank`` is the embedding of example i; training steps update it. ``log_mean`` is the log of the mean of
    exp(<row, v> / temperature) over the first ``drawn`` noise draws, and constant after ``ENOUGH_DRAWS``.
    """

    name = "instance"
    summary = "views of each example matched against a memory bank of all embeddings"
    reference = "Wu, Xiong, Yu and Lin, CVPR 2018"
    needs = Needs(labels=False, unlabelled=True, graph=False, views=True)
    capturable_loss = True
    follows_examples = True
    space = LR | {"temperature": Range(0.05, 0.5, log=True)}
    defaults_on = extended(
        ON_VIEWS,
        {
            "digits": {"passes": 10, "temperature": 0.2},
            "mnist": {"lr": 3e-4},
            "fashion-mnist": {"lr": 3e-4},
            "cifar10": {"lr": 1e-4},
        },
    )
    Settings = InstanceSettings
    settings: InstanceSettings
    bank: Tensor
    log_mean: Tensor
    drawn: Tensor

    def on_fit_begin(self, inputs: Inputs, labels: Tensor, width: int, generator: torch.Generator) -> None:
        """Fill the bank with random directions, and build the views."""
        columns = self.embedding_width(width)
        largest = math.sqrt(3 / columns)  # the mean square is then 1 / columns
        rows = torch.empty(len(inputs), columns).uniform_(-largest, largest, generator=generator)
        self.register_buffer("bank", unit_features(rows))
        self.register_buffer("log_mean", torch.zeros(()))
        self.register_buffer("drawn", torch.zeros((), dtype=torch.int64))
        self.make_views = preset_views(inputs, self.settings.augmentation, ("strong",))

    def constraints(self, features: Tensor, labels: Tensor) -> Targets:
        """Example i has target i, in every epoch."""
        nodes = torch.arange(len(features), device=features.device)
        return Targets(nodes, nodes)

    def loss(self, metric: Metric, features: Tensor, constraints: Targets) -> Tensor:
        """Mean negative log-likelihood of the examples' own rows; in training the bank is then updated."""
        points, targets = unit_points(metric, features), constraints.targets
        loss = self._against_noise(points, targets) if self.settings.noise else self._against_all(points, targets)
        if self.training:
            self._remember(points.detach(), targets)
        return loss

    def _against_all(self, points: Tensor, targets: Tensor) -> Tensor:
        # ``_remember`` changes the bank in place before the backward pass, which needs the old rows: hence a copy. It
        # is cheap compared with the product with the bank.
        rows = self.bank.clone() if self.training else self.bank
        return instance_loss(points, rows, targets, self.settings.temperature)

    def _against_noise(self, points: Tensor, targets: Tensor) -> Tensor:
        """All examples of a batch share their noise draws: n times less memory, the same expected loss."""
        entries, temperature = len(self.bank), self.settings.temperature
        draws = torch.randint(entries, (self.settings.noise,), generator=self.draws, device=points.device)
        noise = scaled_cosines(points, self.bank[draws], temperature)
        own = (points * self.bank[targets]).sum(1) / temperature
        return noise_contrastive_loss(own, noise, self._log_mean_of(noise) + math.log(entries), entries)

    @torch.no_grad()
    def _log_mean_of(self, noise: Tensor) -> Tensor:
        """``log_mean``; it includes the draws (n, m) of this batch until there are enough."""
        drawn = self.drawn.to(noise.dtype)
        past, now = self.log_mean + drawn.log(), noise.flatten().logsumexp(0) - math.log(len(noise))
        mean = torch.logaddexp(past, now) - (drawn + noise.shape[1]).log()
        wanting = self.drawn < ENOUGH_DRAWS
        found = torch.where(wanting, mean, self.log_mean)
        if self.training:
            self.log_mean.copy_(found)
            self.drawn += wanting * noise.shape[1]
        return found

    @torch.no_grad()
    def _remember(self, points: Tensor, targets: Tensor) -> None:
        """Move the rows of these examples towards their points, and normalise them."""
        keep = self.settings.bank_momentum
        rows = keep * self.bank[targets] + (1.0 - keep) * points
        self.bank.index_copy_(0, targets, unit_features(rows).to(self.bank.dtype))

    @torch.no_grad()
    def statistics(self, metric: Metric, features: Tensor, constraints: Targets) -> dict[str, float]:
        """Mean probability and cosine of unaugmented examples' own rows, and how often the own row is the nearest."""
        nodes = constraints.nodes[:: math.ceil(len(constraints) / MOST_JUDGED)]
        at_once = max(1, MOST_COSINES // len(self.bank))
        found = [self._looked_up(metric, features[part], part) for part in nodes.split(at_once)]
        probability, cosine, first = torch.cat(found, dim=1).mean(1).tolist()
        return {"own_probability": probability, "own_cosine": cosine, "own_first": first}

    def _looked_up(self, metric: Metric, features: Tensor, nodes: Tensor) -> Tensor:
        """(3, n): probability and cosine of the example's own row, and whether it is the nearest."""
        cosines = unit_points(metric, features.to(self.bank.dtype)) @ self.bank.T
        own = cosines.gather(1, nodes[:, None])[:, 0]
        log_sum = (cosines / self.settings.temperature).logsumexp(1)
        return torch.stack([(own / self.settings.temperature - log_sum).exp(), own, (own >= cosines.amax(1)).to(own)])
