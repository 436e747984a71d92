"""What an encoder sees of a batch: one view of every example for each augmentation, or the examples themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from semimetric.core.checks import check_choice
from semimetric.data.augmentation import Augmentation, augment, check_augmentation, has_effect
from semimetric.data.randaugment import RandAugment, check_images
from semimetric.data.stored import Inputs, pieces_of

AugmentationKind = Literal["digits", "objects", "randaugment", "photographs", "crops", "vectors"]
AugmentationStrength = Literal["weak", "strong"]
ViewKind = Literal["auto", "digits", "objects", "randaugment", "photographs", "crops", "vectors", "none"]
VIEW_KINDS: tuple[ViewKind, ...] = get_args(ViewKind)
VIEW_HELP = (
    "Views: of digits (never mirrored), objects, randaugment (objects, strongly changed as by FixMatch), photographs "
    "(gentle, for pretrained networks), crops (16 % of the area or more), vectors, or none; auto takes grey images for "
    "digits and colour ones for objects."
)


WEAK: Mapping[str, Augmentation] = {
    "digits": Augmentation(shift=1 / 14),
    "objects": Augmentation(flip=0.5, shift=1 / 8),
    "randaugment": Augmentation(flip=0.5, shift=1 / 8),
    "photographs": Augmentation(flip=0.5),
    "crops": Augmentation(flip=0.5),
    "vectors": Augmentation(noise=0.05),
}
"""Views that hardly anyone would call another picture."""

STRONG: Mapping[str, Augmentation | RandAugment] = {
    "digits": Augmentation(shift=1 / 8, rotate=20.0, scale=0.3, shear=0.25, cutout=3 / 8),
    "objects": Augmentation(
        flip=0.5, shift=1 / 8, scale=0.6, brightness=0.8, contrast=0.8, saturation=0.8, grey=0.2, cutout=1 / 4
    ),
    "randaugment": RandAugment(WEAK["randaugment"]),
    "photographs": Augmentation(flip=0.5, shift=1 / 16, scale=0.3, brightness=0.2, contrast=0.2, saturation=0.2),
    "crops": Augmentation(flip=0.5, crop=0.84),
    "vectors": Augmentation(noise=0.15, drop=0.2),
}
"""Views that take some looking, of the same class still."""


def augmentation_for(kind: AugmentationKind, strength: AugmentationStrength) -> Augmentation | RandAugment:
    """The preset for digits (never mirrored), objects, photographs or standardised vectors."""
    check_choice(kind, tuple(WEAK), "kind")
    check_choice(strength, ("weak", "strong"), "strength")
    return (WEAK if strength == "weak" else STRONG)[kind]


class Views(nn.Module):
    """Views of scaled inputs; vectors are disturbed in units of the deviation of each of their columns.

    Parameters
    ----------
    inputs : Tensor
        All training examples (N, ...): they say what the deviations are, and whether an augmentation has anything
        to do. For RandAugment, the least and the largest value of a channel are its black and its white.
    augmentations : sequence
        One for each view; None leaves the examples as they are, whatever their shape.
    """

    centre: Tensor
    spread: Tensor
    black: Tensor
    white: Tensor

    def __init__(self, inputs: Inputs, augmentations: Sequence[Augmentation | RandAugment | None]) -> None:
        super().__init__()
        self.augmentations = tuple(augmentations)
        needs_levels = any(isinstance(augmentation, RandAugment) for augmentation in augmentations)
        if needs_levels:
            check_images(inputs.shape)
        given = [augmentation for augmentation in augmentations if isinstance(augmentation, Augmentation)]
        if not (needs_levels or any(has_effect(augmentation, inputs.shape) for augmentation in given)):
            for augmentation in given:
                check_augmentation(augmentation, inputs.shape)
        vectors = inputs if isinstance(inputs, Tensor) and inputs.ndim == 2 else None
        self.register_buffer("centre", torch.zeros(()) if vectors is None else vectors.mean(0))
        self.register_buffer("spread", torch.ones(()) if vectors is None else vectors.std(0).clamp_min(1e-12))
        if needs_levels:
            levels = [(piece.amin((0, 2, 3)), piece.amax((0, 2, 3))) for piece in pieces_of(inputs)]
            black, white = (torch.stack(found) for found in zip(*levels, strict=True))
            self.register_buffer("black", black.amin(0).reshape(-1, 1, 1))
            self.register_buffer("white", white.amax(0).reshape(-1, 1, 1))

    def forward(self, inputs: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Views (v n, ...) of examples (n, ...): all first views before all second ones.

        They are drawn from ``generator``, or torch's default one of the device where there is none.
        """
        return torch.cat([self._view(inputs, augmentation, generator) for augmentation in self.augmentations])

    def _view(
        self, inputs: Tensor, augmentation: Augmentation | RandAugment | None, generator: torch.Generator | None
    ) -> Tensor:
        if augmentation is None:
            return inputs
        if isinstance(augmentation, RandAugment):
            return augmentation(inputs, self.black, self.white, generator)
        scaled = (inputs - self.centre) / self.spread  # of vectors; images are scaled already, as a whole
        return augment(scaled, augmentation, generator) * self.spread + self.centre


def kind_of(inputs: Inputs) -> AugmentationKind:
    """The kind of views that suits inputs of this shape where nobody says: digits are never mirrored."""
    if inputs.ndim == 2:
        return "vectors"
    return "objects" if inputs.ndim == 4 and inputs.shape[1] == 3 else "digits"


def preset_views(inputs: Inputs, kind: ViewKind, strengths: Sequence[AugmentationStrength]) -> Views:
    """A view of each strength, of the kind that is named or suits the inputs."""
    check_choice(kind, VIEW_KINDS, "augmentation")
    if kind == "none":
        return Views(inputs, [None] * len(strengths))
    suited = kind_of(inputs) if kind == "auto" else kind
    return Views(inputs, [augmentation_for(suited, strength) for strength in strengths])
