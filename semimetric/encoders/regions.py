"""Pooling of maps: over regions, R-MAC (Tolias, Sicre, Jégou, ICLR 2016), or over all positions at once."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from semimetric.core.errors import InputError
from semimetric.encoders.features import unit_features

LEAST = 1e-6  # entry of a map, so that a mean of powers has a gradient
OVERLAP = 0.4  # share of a region, about, that the next one along the longer side covers too
ON_GPU = 4  # times as many images at a time as on a CPU
MOST_EXTRA = 6  # regions that the longer side may have above the shorter


def rmac(maps: Tensor, levels: int = 3) -> Tensor:
    """Unit descriptors (N, K) of maps (N, K, H, W).

    Level l = 1, 2, ... has square regions of side ``2 min(H, W) / (l + 1)``, l along the shorter side. The maximum of
    each channel over a region, scaled to unit length, is summed over all regions of all levels and scaled again;
    half-precision maps give float32. The paper also whitens each region's vector before the sum, which needs a set of
    images to learn from and is left out.
    """
    if maps.ndim != 4 or not maps.is_floating_point() or min(maps.shape[1:]) < 1:
        raise InputError(
            f"maps must be floating-point numbers of shape (N, K, H, W), none of K, H and W zero, got {maps.dtype} of "
            f"shape {tuple(maps.shape)}. Give the maps of a network before its pooling."
        )
    regions = regions_of(int(maps.shape[2]), int(maps.shape[3]), levels)
    precise = torch.promote_types(maps.dtype, torch.float32)
    pooled = [maps[:, :, top : top + side, left : left + side].amax((2, 3)) for top, left, side in regions]
    return unit_features(torch.stack([unit_features(rows.to(precise)) for rows in pooled]).sum(0))


def regions_of(height: int, width: int, levels: int) -> list[tuple[int, int, int]]:
    """(top, left, side) of every region, rounded down; a region without positions is no region.

    The longer side has ``l + m`` regions, with m of 1..6 such that regions of level 1 overlap by nearest to 40 %.
    """
    _check_whole(levels, "levels")
    shorter, longer = sorted((height, width))
    extra = min(range(1, MOST_EXTRA + 1), key=lambda m: abs(1 - (longer - shorter) / m / shorter - OVERLAP))
    regions = []
    for level in range(1, levels + 1):
        side = 2 * shorter // (level + 1)
        tops = _starts(height, side, level + (extra if height > width else 0))
        lefts = _starts(width, side, level + (extra if width > height else 0))
        regions += [(top, left, side) for top in tops for left in lefts if side]
    return regions


def _starts(length: int, side: int, count: int) -> list[int]:
    """Where ``count`` windows begin that spread evenly over the whole length."""
    return [i * (length - side) // max(count - 1, 1) for i in range(count)]


class RMAC(nn.Module):
    """Images (N, 3, H, W) -> unit descriptors (N, K): R-MAC at several sizes, summed, of a network's maps.

    Parameters
    ----------
    network
        Its ``features(images)`` returns maps (N, K, h, w), or else it does so itself.
    sides
        Lengths in pixels to which the longer side of the images is brought; their shape stays.
    levels
        Levels of regions, see ``rmac``.
    chunk
        Images that a CPU sees at a time in evaluation mode, to save memory; a GPU sees four times as many. In training
        mode a batch stays whole.
    training_sides
        The sides in training mode, to save time and memory; by default the smallest of ``sides`` alone.
    """

    def __init__(
        self,
        network: nn.Module,
        sides: tuple[int, ...] = (512, 362, 256),
        levels: int = 3,
        chunk: int = 16,
        training_sides: tuple[int, ...] | None = None,
    ) -> None:
        super().__init__()
        _check_sides(sides, "sides")
        training_sides = (min(sides),) if training_sides is None else training_sides
        _check_sides(training_sides, "training_sides")
        _check_whole(levels, "levels")
        _check_whole(chunk, "chunk")
        self.network, self.levels, self.chunk = network, levels, chunk
        self.sides, self.training_sides = tuple(sides), tuple(training_sides)

    def forward(self, images: Tensor) -> Tensor:
        """One unit row for each image."""
        chunk = self.chunk if images.is_cpu else ON_GPU * self.chunk
        pieces = (images,) if self.training else images.split(chunk)
        return torch.cat([self._describe(piece) for piece in pieces])

    def _describe(self, images: Tensor) -> Tensor:
        sides = self.training_sides if self.training else self.sides
        rows = [rmac(_maps(self.network, resize_longer(images, side)), self.levels) for side in sides]
        return unit_features(torch.stack(rows).sum(0))


class AverageMaximum(nn.Module):
    """Images (N, 3, H, W) -> (N, K): the average of a network's maps over all positions plus their maximum.

    Parameters
    ----------
    network
        As for ``RMAC``.
    side
        Length in pixels to which the longer side of the images is brought; by default images stay as they are.
    training_side
        The same in training mode. Crops show things larger than whole photographs do, so a smaller side makes both
        alike (Touvron, Vedaldi, Douze and Jégou, Fixing the train-test resolution discrepancy, NeurIPS 2019).
    """

    def __init__(self, network: nn.Module, side: int | None = None, training_side: int | None = None) -> None:
        super().__init__()
        for name, length in (("side", side), ("training_side", training_side)):
            if length is not None:
                _check_whole(length, name)
        self.network, self.side, self.training_side = network, side, training_side

    def forward(self, images: Tensor) -> Tensor:
        """One row for each image."""
        side = self.training_side if self.training else self.side
        maps = _maps(self.network, images if side is None else resize_longer(images, side))
        rows: Tensor = maps.mean((2, 3)) + maps.amax((2, 3))
        return rows


class GeneralizedMean(nn.Module):
    """Images (N, 3, H, W) -> (N, K): (mean over positions of x^power)^(1 / power), of a network's maps x.

    Between the average (power 1) and the maximum. Negative entries count as 0.

    Parameters
    ----------
    network
        As for ``RMAC``.
    power
        At least 1.

    References
    ----------
    Radenović, Tolias and Chum: Fine-tuning CNN image retrieval with no human annotation. TPAMI 2019.
    """

    def __init__(self, network: nn.Module, power: float = 3.0) -> None:
        super().__init__()
        if not power >= 1:
            raise InputError(f"power must be at least 1, got {power}. 1 is the average, 3 is usual.")
        self.network, self.power = network, power

    def forward(self, images: Tensor) -> Tensor:
        """One row for each image."""
        maps = _maps(self.network, images)
        positive = maps.to(torch.promote_types(maps.dtype, torch.float32)).clamp(min=LEAST)
        rows: Tensor = positive.pow(self.power).mean((2, 3)).pow(1 / self.power)
        return rows


def _maps(network: nn.Module, images: Tensor) -> Tensor:
    """Maps (N, K, h, w): of ``network.features``, or of the network itself where it has none."""
    maps: Tensor = getattr(network, "features", network)(images)
    return maps


def resize_longer(images: Tensor, side: int) -> Tensor:
    """Images (N, C, H, W) with a longer side of ``side`` pixels, by bilinear interpolation with antialiasing."""
    factor = side / max(images.shape[2:])
    if factor == 1:
        return images
    size = [max(1, round(length * factor)) for length in images.shape[2:]]
    return nn.functional.interpolate(images, size, mode="bilinear", align_corners=False, antialias=factor < 1)


def _check_sides(sides: tuple[int, ...], name: str) -> None:
    if not sides:
        raise InputError(f"{name} must name at least one length in pixels, got none. Use for example (256,).")
    for side in sides:
        _check_whole(side, f"each of {name}")


def _check_whole(value: int, name: str) -> None:
    if not isinstance(value, int) or value < 1:
        raise InputError(f"{name} must be a whole number of at least 1, got {value!r}.")
