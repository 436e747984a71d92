"""A network that can tell how an image was turned has had to look at what it shows.

All four quarter turns of every image are in a batch, so that each is as frequent as the others.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from semimetric.core.checks import check_choice
from semimetric.core.errors import InputError
from semimetric.core.settings import setting
from semimetric.data import VIEW_HELP, VIEW_KINDS, ViewKind, preset_views, rotate_quarters
from semimetric.methods.base import Needs
from semimetric.methods.baseline import Baseline, BaselineSettings, Targets, head_logits, linear_head, unit_points
from semimetric.metric import Metric

TURNS = 4
"""By 0, 90, 180 and 270 degrees."""

UPRIGHT = 0
"""What an image is to be told as that was not turned."""


@dataclass(frozen=True)
class RotationSettings(BaselineSettings):
    """Hyper-parameters."""

    augmentation: ViewKind = setting("none", f"A weak view of each image, before it is turned. {VIEW_HELP}")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self.augmentation, VIEW_KINDS, "augmentation")


class Rotation(Baseline[Targets]):
    """Cross-entropy of a linear head (d, 4) that tells the quarter turns of square images apart."""

    name = "rotation"
    summary = "tells by which of four quarter turns an image was turned"
    reference = "Gidaris, Singh and Komodakis, ICLR 2018"
    needs = Needs(labels=False, unlabelled=True, graph=False, views=True, images=True)
    capturable_loss = True
    Settings = RotationSettings
    settings: RotationSettings
    head: nn.Linear

    def prepare(self, inputs: Tensor, labels: Tensor, width: int, generator: torch.Generator) -> None:
        """A head for the four turns, of inputs that can be turned."""
        check_turnable(inputs)
        self.head = linear_head(self.embedding_width(width), TURNS, generator)
        self.make_views = preset_views(inputs, self.settings.augmentation, ("weak",))

    def views(self, inputs: Tensor) -> Tensor:
        """All images (n, C, H, H) as they are, then all turned by 90 degrees, by 180, by 270: (4 n, C, H, H).

        The four turns of an image are of the same view of it, and copy its pixels without interpolation.
        """
        images = super().views(inputs)
        return rotate_quarters(images.repeat(TURNS, 1, 1, 1), quarter_turns(len(images), images.device))

    def constraints(self, features: Tensor, labels: Tensor) -> Targets:
        """Every example as it is stands upright."""
        nodes = torch.arange(len(features), device=features.device)
        return Targets(nodes, torch.full_like(nodes, UPRIGHT))

    def loss(self, metric: Metric, features: Tensor, constraints: Targets) -> Tensor:
        """Mean cross-entropy over the features (4 n, d) of the views, to be told as so many turns from upright."""
        turns = quarter_turns(len(constraints), features.device)
        return cross_entropy(self._logits(metric, features), constraints.targets.repeat(TURNS) + turns)

    def _logits(self, metric: Metric, features: Tensor) -> Tensor:
        return head_logits(self.head, unit_points(metric, features))

    @torch.no_grad()
    def statistics(self, metric: Metric, features: Tensor, constraints: Targets) -> dict[str, float]:
        """The share of examples that the head takes for upright, as all of them are."""
        told = self._logits(metric, features[constraints.nodes]).argmax(1)
        return {"told_upright": float((told == constraints.targets).double().mean())}


def quarter_turns(images: int, device: torch.device) -> Tensor:
    """The turns (4 n,) of the views of n images."""
    return torch.arange(TURNS, device=device).repeat_interleave(images)


def check_turnable(inputs: Tensor) -> None:
    """Refuse what quarter turns would change the shape of."""
    if inputs.ndim != 4:
        raise InputError(
            f"inputs of method 'rotation' must be images (N, channels, side, side), got shape {tuple(inputs.shape)}. "
            "For vectors use method 'instance' or 'deepcluster'; give images without one an axis for their channels."
        )
    height, width = inputs.shape[2:]
    if height != width:
        raise InputError(
            f"inputs of method 'rotation' must be square images, got {height} x {width} pixels. "
            + ("Put the channels first." if width in (1, 3) else "Crop or pad them to squares.")
        )
