"""Exemplar learning: each seed example is a class, and the network classifies random transformations of the seeds.

The page in ``docs/methods`` says what replaces the transformations of the original.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from semimetric.core.checks import check_at_least
from semimetric.core.settings import setting
from semimetric.data import Augmentation, RandAugment, ViewKind, Views, augmentation_for, kind_of, preset_views
from semimetric.data.stored import Inputs
from semimetric.methods.baseline import ON_VIEWS, Classifier, Targets, ViewSettings, linear_head
from semimetric.methods.defaults import extended
from semimetric.metric import Metric

_GEOMETRY_AND_LIGHT = Augmentation(shift=0.2, rotate=20.0, scale=0.5, contrast=0.5, brightness=0.4)

TRANSFORMATIONS: Mapping[str, Augmentation | RandAugment] = {
    "digits": _GEOMETRY_AND_LIGHT,
    "objects": replace(_GEOMETRY_AND_LIGHT, flip=0.5, saturation=0.8),
    "vectors": augmentation_for("vectors", "strong"),
}
"""Shift, rotation and scale as in the original; adapted colour changes for scaled images; mirroring is added."""

MOST_JUDGED = 2000  # seeds, evenly spaced, that ``statistics`` uses
MOST_LOGITS = 10_000_000  # logits that ``statistics`` holds at once (40 MB)


@dataclass(frozen=True)
class ExemplarSettings(ViewSettings):
    """Hyper-parameters; the original mostly uses 8000 surrogate classes."""

    exemplars: int = setting(8000, "Number of random seed examples, each its own class; at most all examples.")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self.exemplars, 2, "exemplars")


class Exemplar(Classifier[Targets]):
    """Cross-entropy of a linear head (d, N_e) over N_e seeds. A batch of b costs O(b d N_e) time and b N_e logits."""

    name = "exemplar"
    summary = "each seed example is a class, under random transformations"
    reference = "Dosovitskiy, Springenberg, Riedmiller and Brox, NIPS 2014"
    follows_examples = True
    training_defaults = Classifier.training_defaults | {"passes": 5}
    defaults_on = extended(ON_VIEWS, {"cifar10": {"lr": 3e-4}})
    Settings = ExemplarSettings
    settings: ExemplarSettings
    seeds: Tensor

    def on_fit_begin(self, inputs: Inputs, labels: Tensor, width: int, generator: torch.Generator) -> None:
        """Draw the seeds, sorted rows (N_e,) of the inputs, and build the head and the views."""
        drawn = torch.randperm(len(inputs), generator=generator)[: self.settings.exemplars]
        self.register_buffer("seeds", drawn.sort().values)
        self.head = linear_head(self.embedding_width(width), len(drawn), generator)
        self.make_views = transformations(inputs, self.settings.augmentation)

    def constraints(self, features: Tensor, labels: Tensor) -> Targets:
        """The i-th seed has target i, in every epoch."""
        return Targets(self.seeds, torch.arange(len(self.seeds), device=self.seeds.device))

    def loss(self, metric: Metric, features: Tensor, constraints: Targets) -> Tensor:
        """Mean cross-entropy over the seeds."""
        return cross_entropy(self.logits(metric, features), constraints.targets)

    @torch.no_grad()
    def statistics(self, metric: Metric, features: Tensor, constraints: Targets) -> dict[str, float]:
        """Loss and accuracy of the head on untransformed seeds."""
        step = math.ceil(len(constraints) / MOST_JUDGED)
        nodes, targets = constraints.nodes[::step], constraints.targets[::step]
        chunk = max(1, MOST_LOGITS // len(constraints))
        loss, right = 0.0, 0
        for rows, own in zip(nodes.split(chunk), targets.split(chunk), strict=True):
            logits = self.logits(metric, features[rows])
            loss += float(cross_entropy(logits, own, reduction="sum"))
            right += int((logits.argmax(1) == own).sum())
        return {"exemplar_loss": loss / len(nodes), "exemplar_accuracy": right / len(nodes)}


def transformations(inputs: Inputs, kind: ViewKind) -> Views:
    """One view of each example, of this kind, or for "auto" of the kind of the inputs; strong where none is listed."""
    suited = kind_of(inputs) if kind == "auto" else kind
    if suited in TRANSFORMATIONS:
        return Views(inputs, [TRANSFORMATIONS[suited]])
    return preset_views(inputs, suited, ("strong",))
