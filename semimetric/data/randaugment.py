"""RandAugment for batches: a few of fourteen operations on grey levels 0 to 255, drawn for each image anew.

An operation does what Pillow does. All images of a batch go through the same passes, with parameters of their own that
leave an image as it is unless the operation was drawn. Nothing here reads a value on the host, and all shapes are
fixed, so a training step with views in it can be recorded as a CUDA graph.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from semimetric.core.checks import check_at_least
from semimetric.core.errors import InputError
from semimetric.core.settings import setting
from semimetric.data.augmentation import Augmentation, augment

OPERATIONS = (
    "identity",
    "autocontrast",
    "equalise",
    "posterise",
    "solarise",
    "brightness",
    "colour",
    "contrast",
    "sharpness",
    "rotate",
    "shear_x",
    "shear_y",
    "translate_x",
    "translate_y",
)
"""What is drawn from, each as likely as another."""

LEAST, MOST = 0.05, 0.95
"""What brightness, colour, contrast and sharpness keep of the image; the rest is black, grey, flat or smooth."""
FEWEST_BITS, MOST_BITS = 4, 8
DEGREES, SHARE = 30.0, 0.3
"""Largest rotation; largest slope of a shear and largest translation, as a share of the side."""

_BLENDS = ("brightness", "colour", "contrast", "sharpness")
_LUMA = (0.299, 0.587, 0.114)  # of red, green and blue
_WHITE = 255
_PIECE = 1 << 19  # the most values that a CPU changes at a time: they stay in its cache
_ROUNDING = 1e-3  # a mixture of two equal levels stays that level


@dataclass(frozen=True)
class RandAugment:
    """A view as FixMatch makes it: a gentle augmentation, random operations, then cutout.

    References
    ----------
    Cubuk, Zoph, Shlens and Le, RandAugment: practical automated data augmentation with a reduced search space,
    NeurIPS 2020. Sohn et al., FixMatch: simplifying semi-supervised learning with consistency and confidence,
    NeurIPS 2020.
    """

    first: Augmentation = setting(Augmentation(), "What happens to an image before the operations.")
    count: int = setting(3, "How many operations each image gets, drawn with replacement.")
    last: Augmentation = setting(Augmentation(cutout=0.5), "What happens to an image after the operations.")

    def __post_init__(self) -> None:
        check_at_least(self.count, 1, "count")

    def __call__(
        self, images: Tensor, black: Tensor, white: Tensor, generator: torch.Generator | None = None
    ) -> Tensor:
        """Views of scaled images (N, C, H, W), given their values (C, 1, 1) of black and white."""
        views = augment(images, self.first, generator)
        return augment(rand_augment(views, black, white, self.count, generator), self.last, generator)


def rand_augment(
    images: Tensor, black: Tensor, white: Tensor, count: int = 3, generator: torch.Generator | None = None
) -> Tensor:
    """Apply ``count`` operations to each image, drawn with replacement, one after the other.

    Parameters
    ----------
    images : Tensor
        Scaled images (N, C, H, W), floating point. They are rounded to 256 levels between black and white.
    black, white : Tensor
        Values of the levels 0 and 255, one for each channel (C, 1, 1).
    count : int
        Number of operations.
    generator : torch.Generator, optional
        Source of the draws, on the device of ``images``; torch's default one of that device where there is none.

    Returns
    -------
    Tensor
        Images of the same shape, type and device, between black and white.
    """
    check_images(images.shape)
    if not images.is_floating_point():
        raise InputError(f"images must be scaled floating-point numbers, got {images.dtype}; preprocess them first.")
    shape = (2, count, len(images))
    choices, sizes = torch.rand(shape, generator=generator, device=images.device, dtype=torch.float32).unbind()
    choices = (choices * len(OPERATIONS)).floor()
    black, white = black.to(images.device, torch.float32), white.to(images.device, torch.float32)
    unit = torch.where(white > black, (white - black) / _WHITE, 1.0)
    most = max(1, _PIECE // max(1, math.prod(images.shape[1:]))) if images.is_cpu else max(1, len(images))
    pieces = zip(images.split(most), choices.split(most, 1), sizes.split(most, 1), strict=True)
    return torch.cat([_operate_in_turn(*piece, black, unit) for piece in pieces])


def _operate_in_turn(images: Tensor, choices: Tensor, sizes: Tensor, black: Tensor, unit: Tensor) -> Tensor:
    """Scaled images to levels, through all operations (count, N), and back."""
    levels = ((images.float() - black) / unit).round_().clamp_(0, _WHITE)
    for choice, size in zip(choices.unbind(), sizes.unbind(), strict=True):
        levels = operate(levels, choice, size)
    return torch.addcmul(black, levels, unit).to(images.dtype)


def check_images(shape: torch.Size) -> None:
    """Refuse inputs whose shape is not that of a batch of images."""
    if len(shape) != 4:
        raise InputError(
            f"RandAugment needs images (N, C, H, W), got shape {tuple(shape)}; use other views (augmentation)."
        )


def operate(levels: Tensor, choice: Tensor, size: Tensor) -> Tensor:
    """Apply one operation to each image.

    Parameters
    ----------
    levels : Tensor
        Images (N, C, H, W) of whole numbers from 0 to 255, in float32.
    choice : Tensor
        For each image (N,) the position of its operation in ``OPERATIONS``.
    size : Tensor
        For each image (N,) a number in [0, 1) that says where in its range the amount is.

    Returns
    -------
    Tensor
        Images of whole numbers from 0 to 255.
    """
    drawn = _Drawn(choice, size)
    return _look_up(_blend(_move(levels, drawn), drawn), drawn)


class _Drawn:
    """The operations and amounts of N images."""

    def __init__(self, choice: Tensor, size: Tensor) -> None:
        self._choice = choice
        self.size = size
        self.signed = 2 * size - 1

    def is_(self, name: str) -> Tensor:
        """Which images (N,) get the operation."""
        return self._choice == OPERATIONS.index(name)

    def only(self, name: str, amount: Tensor) -> Tensor:
        """The amount (N,) where the operation was drawn, elsewhere 0."""
        return amount * self.is_(name)


def _per_image(values: Tensor) -> Tensor:
    return values.reshape(-1, 1, 1, 1)


def _move(levels: Tensor, drawn: _Drawn) -> Tensor:
    """Rotate about the centre, shear along a side through the corner, or translate; black comes in.

    The level of a pixel is that of the nearest one, as in ``Image.rotate`` and ``Image.transform`` with their default.
    """
    height, width = levels.shape[2:]
    ratio = height / width
    turn = drawn.only("rotate", drawn.signed) * math.radians(DEGREES)
    cos, sin = turn.cos(), turn.sin()
    share = drawn.signed * SHARE
    shear_x, shear_y = drawn.only("shear_x", share) * ratio, drawn.only("shear_y", share) / ratio
    across, along = shear_x - sin * ratio, shear_y + sin / ratio
    right, down = drawn.only("translate_x", 2 * share) + shear_x, drawn.only("translate_y", 2 * share) + shear_y
    x, y = _halves(width, levels.device)[:, None], _halves(height, levels.device)[:, None, None]
    by_row = y * torch.stack((across, cos), 1)[:, None, None] + torch.stack((right, down), 1)[:, None, None]
    grid = x * torch.stack((cos, along), 1)[:, None, None] + by_row  # (N, H, W, 2), to take from
    return functional.grid_sample(levels, grid, mode="nearest", padding_mode="zeros", align_corners=False)


def _halves(side: int, device: torch.device) -> Tensor:
    """Where pixels are (side,), in halves of the side from the centre."""
    return (torch.arange(side, device=device, dtype=torch.float32) * 2 + (1 - side)) / side


def _blend(levels: Tensor, drawn: _Drawn) -> Tensor:
    """Mix images with black (brightness), their grey (colour), its mean (contrast) or a smooth copy (sharpness)."""
    chosen = torch.stack([drawn.is_(name) for name in _BLENDS]).any(0)
    lost = chosen * (1 - LEAST - (MOST - LEAST) * drawn.size)
    smoothed = drawn.only("sharpness", lost)
    grey = _grey(levels)
    mean = (grey.mean((1, 2, 3)) + 0.5).floor()
    flat, greyed = drawn.only("contrast", lost * mean), drawn.only("colour", lost)
    rest = torch.addcmul(_per_image(flat + _ROUNDING), grey, _per_image(greyed))
    mixed = torch.addcmul(rest, levels, _per_image(1 - lost + smoothed))
    _inner(mixed).addcmul_(_roughness(levels), _per_image(-smoothed))
    return mixed.floor_()


def _grey(levels: Tensor) -> Tensor:
    """Luminance (N, 1, H, W) of colours as Pillow has it; of other images the mean of the channels."""
    if levels.shape[1] != len(_LUMA):
        return (levels.mean(1, keepdim=True) + 0.5).floor()
    red, green, blue = levels.unbind(1)
    return (red * _LUMA[0] + green * _LUMA[1] + blue * _LUMA[2] + 0.5).floor()[:, None]


def _inner(levels: Tensor) -> Tensor:
    return levels[:, :, 1:-1, 1:-1]


def _roughness(levels: Tensor) -> Tensor:
    """What inner pixels (N, C, H - 2, W - 2) are above the mean of their neighbourhood, in which they weigh 5 of 13."""
    rows = levels[:, :, :-2] + levels[:, :, 1:-1] + levels[:, :, 2:]
    sums = rows[..., :-2] + rows[..., 1:-1] + rows[..., 2:]
    return (9 / 13) * _inner(levels) - sums / 13


def _look_up(levels: Tensor, drawn: _Drawn) -> Tensor:
    """Replace each level by another: posterise, solarise, autocontrast or equalise."""
    pixels = levels.flatten(2)
    places = pixels.long()
    low, high = pixels.amin(2, keepdim=True), pixels.amax(2, keepdim=True)
    old = torch.arange(_WHITE + 1, device=levels.device, dtype=torch.float32)
    new = _coarser_or_inverted(old, drawn)  # (N, 1, 256)
    stretched = ((old - low) * _WHITE / (high - low).clamp_min(1)).floor_().clamp_(0, _WHITE)
    new = torch.where(drawn.is_("autocontrast")[:, None, None] & (high > low), stretched, new)  # (N, C, 256)
    counts = torch.zeros_like(new).scatter_add_(2, places, torch.ones_like(pixels))
    step = ((pixels.shape[2] - counts.gather(2, high.long())) / _WHITE).floor()
    below = counts.cumsum(2).sub_(counts)
    levelled = below.add_((step / 2).floor()).div_(step.clamp_min(1)).floor_().clamp_max_(_WHITE)
    new = torch.where(drawn.is_("equalise")[:, None, None] & (step > 0), levelled, new)
    return new.gather(2, places).reshape(levels.shape)


def _coarser_or_inverted(old: Tensor, drawn: _Drawn) -> Tensor:
    """Levels (N, 1, 256) with their last bits cleared, or inverted from a threshold on; both are off unless drawn."""
    bits_kept = FEWEST_BITS + (drawn.size * (MOST_BITS - FEWEST_BITS + 1)).floor()
    unit = drawn.only("posterise", 8 - bits_kept).exp2().round().reshape(-1, 1, 1)
    threshold = ((_WHITE + 1) * (1 - drawn.only("solarise", 1 - drawn.size))).reshape(-1, 1, 1)
    coarse = (old / unit).floor() * unit
    return torch.where(old < threshold, coarse, _WHITE - old)
