"""Rotation prediction: the network classifies by which quarter turn an image was rotated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from semimetric.core.errors import InputError
from semimetric.core.settings import setting
from semimetric.core.space import Range, Space
from semimetric.data import VIEW_HELP, ViewKind, preset_views, rotate_quarters
from semimetric.data.stored import Inputs
from semimetric.methods.base import Needs
from semimetric.methods.baseline import ON, Classifier, Targets, ViewSettings, linear_head
from semimetric.methods.defaults import Values, extended, on_photographs
from semimetric.metric import Metric

TURNS = 4  # by 0, 90, 180 and 270 degrees
UPRIGHT = 0  # target of an image that is not rotated

NETWORK: Values = {"encoder": "googlenet", "preprocess": "imagenet", "side": 224, "precision": "bfloat16"}
TRAINED_NETWORK: Values = ON["pretrained"] | NETWORK | {"backbone": ""}
"""Photographs themselves, since descriptors cannot be rotated."""


@dataclass(frozen=True)
class RotationSettings(ViewSettings):
    """Hyper-parameters."""

    augmentation: ViewKind = setting("none", f"Weak view of each image, before it is rotated. {VIEW_HELP}")


class Rotation(Classifier[Targets]):
    """Cross-entropy of a linear head (d, 4) over the quarter turns of square images."""

    name = "rotation"
    summary = "predicts by which quarter turn an image was rotated"
    reference = "Gidaris, Singh and Komodakis, ICLR 2018"
    needs = Needs(labels=False, unlabelled=True, graph=False, views=True, images=True)
    space: ClassVar[Space] = {"lr": Range(1e-5, 1e-2, log=True)}
    defaults_on = extended(
        ON,
        {"digits": {"lr": 1e-4, "epochs": 10}, "mnist": {"lr": 3e-3}, "fashion-mnist": {"lr": 3e-3}}
        | on_photographs(TRAINED_NETWORK),
    )
    Settings = RotationSettings
    settings: RotationSettings

    def on_fit_begin(self, inputs: Inputs, labels: Tensor, width: int, generator: torch.Generator) -> None:
        """Check that the inputs can be rotated, and build the head and the views."""
        check_turnable(inputs)
        self.head = linear_head(self.embedding_width(width), TURNS, generator)
        self.make_views = preset_views(inputs, self.settings.augmentation, ("weak",))

    def views(self, inputs: Tensor) -> Tensor:
        """One view of each image (n, C, H, H), all by 0, then all by 90, 180 and 270 degrees: (4 n, C, H, H)."""
        images = super().views(inputs)
        return rotate_quarters(images.repeat(TURNS, 1, 1, 1), quarter_turns(len(images), images.device))

    def constraints(self, features: Tensor, labels: Tensor) -> Targets:
        """All examples, with the target ``UPRIGHT``."""
        nodes = torch.arange(len(features), device=features.device)
        return Targets(nodes, torch.full_like(nodes, UPRIGHT))

    def loss(self, metric: Metric, features: Tensor, constraints: Targets) -> Tensor:
        """Mean cross-entropy over the features (4 n, d) of the views; the target of a view is its number of turns."""
        turns = quarter_turns(len(constraints), features.device)
        return cross_entropy(self.logits(metric, features), constraints.targets.repeat(TURNS) + turns)

    @torch.no_grad()
    def statistics(self, metric: Metric, features: Tensor, constraints: Targets) -> dict[str, float]:
        """Share of the examples, none of them rotated, that the head classifies as upright."""
        told = self.logits(metric, features[constraints.nodes]).argmax(1)
        return {"told_upright": float((told == constraints.targets).double().mean())}


def quarter_turns(images: int, device: torch.device) -> Tensor:
    """Turns (4 n,) of the views of n images."""
    return torch.arange(TURNS, device=device).repeat_interleave(images)


def check_turnable(inputs: Inputs) -> None:
    """Refuse inputs that are not square images."""
    if inputs.ndim != 4:
        raise InputError(
            f"inputs of method 'rotation' must be images (N, channels, side, side), got shape {tuple(inputs.shape)}. "
            "For vectors use method 'instance' or 'deepcluster'; add an axis to images without channels."
        )
    height, width = inputs.shape[2:]
    if height != width:
        raise InputError(
            f"inputs of method 'rotation' must be square images, got {height} x {width} pixels. "
            + ("Put the channels first." if width in (1, 3) else "Crop or pad them to squares.")
        )
