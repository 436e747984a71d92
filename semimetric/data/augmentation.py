"""Augmented views of a batch of scaled inputs, where 0 is the mean: what comes in at borders and what cutout leaves.

Nothing here reads a value on the host, so a training step with views in it can be recorded as a CUDA graph.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor
from torch.nn import functional

from semimetric.core.errors import InputError
from semimetric.core.settings import setting

_LARGEST = {"rotate": 180.0, "scale": 4.0, "brightness": math.inf, "noise": math.inf}  # of the others: 1
_WARPS = ("rotate", "scale", "shear")
_GEOMETRY = (*_WARPS, "crop")
_COLOURS = ("saturation", "grey")
_OPTIONAL = (*_WARPS, "brightness", "contrast", "sharpness", "invert", *_COLOURS)
_FOR_VECTORS = ("noise", "drop")
_CROP = ("crop", "crop_row", "crop_column")  # drawn only for crops
_DRAWS = (*_OPTIONAL, "flip", "down", "right", "shear_axis", "cutout_side", "cutout_row", "cutout_column")


@dataclass(frozen=True)
class Augmentation:
    """How far a view may be from its example; 0 switches an operation off.

    A range r stands for an amount drawn uniformly from [-r, r], a probability for an event, both for each example
    anew. Shares of a side are rounded to whole pixels. The order is fixed: geometry, sharpness, saturation and grey,
    contrast, brightness, inversion, noise, dropped entries, cutout. ``operations`` chooses what an image may get: an
    inversion that is chosen happens with its probability still.

    References
    ----------
    Cubuk, Zoph, Shlens and Le, RandAugment: practical automated data augmentation with a reduced search space,
    NeurIPS 2020. DeVries and Taylor, Improved regularization of convolutional neural networks with cutout, 2017.
    """

    shift: float = setting(0.0, "Largest translation in whole pixels, as a share of the side; 0 comes in.")
    rotate: float = setting(0.0, "Largest rotation about the centre, in degrees.")
    scale: float = setting(0.0, "Largest zoom about the centre, as a power of 2: 1 is half to twice the size.")
    shear: float = setting(0.0, "Largest slope of a shear, along the rows or along the columns.")
    crop: float = setting(
        0.0, "Largest share of the area that is cut away; the rest, in the shape of the image, fills the view."
    )
    flip: float = setting(0.0, "Probability of mirroring an image left-right.")
    cutout: float = setting(0.0, "Largest side of a zeroed square, as a share of the shorter side of the image.")
    brightness: float = setting(0.0, "Largest value added to an image, as a multiple of its root mean square.")
    contrast: float = setting(0.0, "Largest change c of contrast: deviations from the image's mean times 1 + c.")
    saturation: float = setting(0.0, "Largest change c of saturation: deviations from grey times 1 + c (3 channels).")
    sharpness: float = setting(0.0, "Largest change c of sharpness: deviations from a 3x3 blur times 1 + c.")
    invert: float = setting(0.0, "Probability of negating a scaled image.")
    grey: float = setting(0.0, "Probability of replacing each channel by the mean of all (3 channels).")
    noise: float = setting(0.0, "Standard deviation of Gaussian noise, in the units of the scaled inputs.")
    drop: float = setting(0.0, "Probability of setting an entry to 0.")
    operations: int = setting(
        0,
        "How many of rotation, zoom, shear, brightness, contrast, sharpness, inversion, saturation and grey each "
        "image gets, chosen at random among those that are on; 0 applies all of them.",
    )

    def __post_init__(self) -> None:
        for name, value in _amounts(self).items():
            largest = _LARGEST.get(name, 1.0)
            if not (0 <= value <= largest and math.isfinite(value)):
                limits = "a finite number of at least 0" if largest == math.inf else f"between 0 and {largest:g}"
                raise InputError(f"{name} must be {limits}, got {value}; 0 switches it off.")
        most = self.operations
        if not isinstance(most, int) or most < 0:
            raise InputError(f"operations must be a whole number of at least 0, got {most}; 0 applies all that are on.")
        if most and not set(_on(self)) & set(_OPTIONAL):
            raise InputError(
                f"operations is {most}, but none of the operations to choose from is on; "
                f"set one of {', '.join(_OPTIONAL)}, or operations to 0."
            )


def _on(augmentation: Augmentation) -> list[str]:
    return [name for name, amount in _amounts(augmentation).items() if amount > 0]


def _amounts(augmentation: Augmentation) -> dict[str, float]:
    return {field.name: getattr(augmentation, field.name) for field in fields(augmentation)[:-1]}


def check_augmentation(augmentation: Augmentation, shape: Sequence[int]) -> None:
    """Refuse an augmentation that leaves all inputs of a shape (N, d) or (N, C, H, W) as they are."""
    if has_effect(augmentation, shape):
        return
    on = _on(augmentation)
    which = f"only {', '.join(on)} is on" if on else "every operation is off"
    of_images = "saturation and grey need 3 channels, shift and cutout at least half a pixel"
    what = "vectors know noise and drop alone" if len(shape) == 2 else of_images
    raise InputError(
        f"augmentation has nothing to do for inputs of shape {tuple(shape)}: {which}, and {what}; "
        "use the augmentation of another kind, set another operation, or go without (augmentation 'none')."
    )


def has_effect(augmentation: Augmentation, shape: Sequence[int]) -> bool:
    """Whether inputs of a shape (N, d) or (N, C, H, W) can come out changed."""
    _check_kind(shape)
    return bool(_effective(augmentation, shape))


def _check_kind(shape: Sequence[int]) -> None:
    if len(shape) not in (2, 4):
        raise InputError(
            f"inputs must be vectors (N, d) or images (N, C, H, W) to be augmented, got shape {tuple(shape)}; "
            "reshape them, or go without augmentation."
        )


def _effective(augmentation: Augmentation, shape: Sequence[int]) -> list[str]:
    """The names of what is on and can change inputs of this shape."""
    on = _on(augmentation)
    if len(shape) == 2:
        return [name for name in on if name in _FOR_VECTORS]
    can = {"shift": _pixels(augmentation.shift, max(shape[2:])), "cutout": _pixels(augmentation.cutout, min(shape[2:]))}
    can |= dict.fromkeys(_COLOURS, shape[1] == 3)
    return [name for name in on if can.get(name, True)]


def _pixels(share: float, side: int) -> int:
    return math.floor(share * side + 0.5)


def augment(inputs: Tensor, augmentation: Augmentation, generator: torch.Generator | None = None) -> Tensor:
    """One view of each example, drawn independently.

    Parameters
    ----------
    inputs : Tensor
        Scaled vectors (N, d) or images (N, C, H, W), floating point. Vectors only know ``noise`` and ``drop``.
    augmentation : Augmentation
        What may happen to them.
    generator : torch.Generator, optional
        Source of the draws, on the device of ``inputs``; torch's default one of that device where there is none.
        Switching an operation on or off leaves the amounts of the others as they were.

    Returns
    -------
    Tensor
        Views of the same shape, type and device. Without an operation that is on, the inputs themselves.
    """
    _check_inputs(inputs, generator)
    views = inputs.to(torch.promote_types(inputs.dtype, torch.float32))  # half precision cannot hold coordinates
    if inputs.ndim == 2:
        return _disturb(views, augmentation, generator).to(inputs.dtype)
    dice = _Dice(augmentation, views, generator)
    views = _recolour(_move(views, dice), dice)
    return _cut_out(_disturb(views, augmentation, generator), dice).to(inputs.dtype)


def _check_inputs(inputs: Tensor, generator: torch.Generator | None) -> None:
    _check_kind(inputs.shape)
    if not inputs.is_floating_point():
        raise InputError(
            f"inputs must be scaled floating-point numbers to be augmented, got {inputs.dtype}; "
            "apply the preprocessing first."
        )
    if generator is not None and generator.device.type != inputs.device.type:
        raise InputError(
            f"generator must be on the device of the inputs, {inputs.device}, got one on {generator.device}; "
            "make it with torch.Generator(inputs.device)."
        )


class _Dice:
    """The draws for a batch of N images: one row of uniform numbers for each name, whatever is on."""

    def __init__(self, augmentation: Augmentation, images: Tensor, generator: torch.Generator | None) -> None:
        self.augmentation = augmentation
        self.effective = _effective(augmentation, images.shape)
        shape = (len(_DRAWS) + len(_OPTIONAL), len(images))
        uniform = torch.rand(shape, generator=generator, device=images.device, dtype=torch.float32).to(images.dtype)
        self._uniform = dict(zip(_DRAWS, uniform.unbind(), strict=False))
        self._signed = dict(zip(_OPTIONAL, (2 * uniform[: len(_OPTIONAL)] - 1).unbind(), strict=True))
        self._chosen = self._choose(uniform[len(_DRAWS) :])
        if self.on("crop"):
            drawn = torch.rand((len(_CROP), len(images)), generator=generator, device=images.device)
            self._uniform |= dict(zip(_CROP, drawn.to(images.dtype).unbind(), strict=True))

    def _choose(self, scores: Tensor) -> dict[str, Tensor]:
        """For each optional operation 1 for the images (N,) that get it and 0 for others; empty for all to all."""
        names = [name for name in self.effective if name in _OPTIONAL]
        most = self.augmentation.operations
        if not 0 < most < len(names):
            return {}
        scores = scores[: len(names)]
        chosen = torch.zeros_like(scores).scatter(0, scores.topk(most, dim=0).indices, 1.0)
        return dict(zip(names, chosen.unbind(), strict=True))

    def on(self, *names: str) -> bool:
        """Whether any of the named operations can change these images."""
        return any(name in self.effective for name in names)

    def amount(self, name: str) -> Tensor:
        """Uniform (N,) on [-r, r) with r the range of the field; 0 where the operation was not chosen."""
        amount: Tensor = self._signed[name] * getattr(self.augmentation, name)
        return amount * self._chosen[name] if name in self._chosen else amount

    def event(self, name: str) -> Tensor:
        """1 where it happens (N,), with the probability of the field, and 0 elsewhere or where it was not chosen."""
        uniform = self._uniform[name]
        event: Tensor = (uniform < getattr(self.augmentation, name)).to(uniform.dtype)
        return event * self._chosen[name] if name in self._chosen else event

    def below(self, name: str, bound: int) -> Tensor:
        """Uniform whole numbers (N,) from 0 to bound - 1, as floating point."""
        return (self._uniform[name] * bound).floor()

    def crop(self) -> tuple[Tensor, Tensor, Tensor]:
        """Share of a side (N,) that a view shows, and how far right and down its centre is, in halves of a side."""
        share = (1 - self.augmentation.crop * self._uniform["crop"]).sqrt()
        right, down = (2 * self._uniform[name] - 1 for name in ("crop_column", "crop_row"))
        return share, right * (1 - share), down * (1 - share)

    def shift(self, name: str, side: int) -> Tensor:
        """Uniform whole pixels (N,) of a translation along a side."""
        most = _pixels(self.augmentation.shift, side)
        return self.below(name, 2 * most + 1) - most


def _per_image(values: Tensor) -> Tensor:
    return values.reshape(-1, 1, 1, 1)


def _move(images: Tensor, dice: _Dice) -> Tensor:
    """All geometry of a view in one step, without interpolation where whole pixels will do."""
    if dice.on(*_GEOMETRY):
        grid = _grid(images.shape, dice)
        return functional.grid_sample(images, grid, mode="bilinear", padding_mode="zeros", align_corners=False)
    return _move_pixels(images, dice) if dice.on("shift", "flip") else images


def _move_pixels(images: Tensor, dice: _Dice) -> Tensor:
    """Mirror images, then shift them, by copying whole pixels; what comes in is 0."""
    height, width = images.shape[2:]
    device = images.device
    rows = torch.arange(height, device=device) - dice.shift("down", height).long()[:, None]  # (N, H), to take from
    columns = torch.arange(width, device=device) - dice.shift("right", width).long()[:, None]
    inside = ((rows >= 0) & (rows < height))[:, None, :, None] & ((columns >= 0) & (columns < width))[:, None, None]
    columns = torch.where(dice.event("flip")[:, None] > 0, width - 1 - columns, columns)
    places = rows.clamp(0, height - 1)[:, :, None] * width + columns.clamp(0, width - 1)[:, None]
    places = places.flatten(1)[:, None].expand(-1, images.shape[1], -1)
    return images.flatten(2).gather(2, places).reshape(images.shape).masked_fill(~inside, 0.0)


def _grid(shape: torch.Size, dice: _Dice) -> Tensor:
    """Where each pixel p of a view is taken from (N, H, W, 2): F S R(t) 2^-z (p - s), for ``grid_sample``.

    F mirrors, S shears along x or y, R(t) turns, 2^z zooms, s shifts. A crop zooms, too, and moves the centre. The sum
    is written out: a matrix product could be rounded to the ten bits of TensorFloat32.
    """
    height, width = shape[2:]
    turn, slope = dice.amount("rotate") * (math.pi / 180), dice.amount("shear")
    zoom = torch.exp2(-dice.amount("scale"))
    if dice.on("crop"):
        share, *centre = dice.crop()
        zoom = zoom * share
    cos, sin = turn.cos() * zoom, turn.sin() * zoom
    along_x = slope * dice.below("shear_axis", 2)
    along_y = slope - along_x
    mirror = (1 - 2 * dice.event("flip")) * (height / width)  # grid_sample counts in halves of each side
    x = torch.stack((mirror * (cos - along_x * sin), along_y * cos - sin), dim=1) * (2 / height)
    y = torch.stack((mirror * (sin + along_x * cos), along_y * sin + cos), dim=1) * (2 / height)
    right = _centred(width, dice.shift("right", width))[:, None, :, None] * x[:, None, None]
    down = _centred(height, dice.shift("down", height))[:, :, None, None] * y[:, None, None]
    if not dice.on("crop"):
        return right + down
    return right + down + torch.stack(centre, dim=1)[:, None, None]


def _centred(side: int, shift: Tensor) -> Tensor:
    """Positions (N, side) of the pixels of a view, from the centre of the image that it shifts."""
    return torch.arange(side, device=shift.device, dtype=shift.dtype) - (side - 1) / 2 - shift[:, None]


def _recolour(images: Tensor, dice: _Dice) -> Tensor:
    """Sharpness, then gain * (k x + (1 - k) grey) + offset, with k = 1 + saturation (grey: 0), gain 1 + contrast."""
    if dice.on("sharpness"):
        blur = functional.avg_pool2d(images, 3, stride=1, padding=1, count_include_pad=False)
        images = torch.lerp(images, blur, -_per_image(dice.amount("sharpness")))
    if not dice.on("brightness", "contrast", "invert", *_COLOURS):
        return images
    within = (1, 2, 3)
    sign = 1 - 2 * dice.event("invert")
    gain = sign * (1 + dice.amount("contrast"))
    size = torch.linalg.vector_norm(images, dim=within) / math.sqrt(math.prod(images.shape[1:]))
    rest = _per_image((sign - gain) * images.mean(within) + sign * dice.amount("brightness") * size)
    if dice.on(*_COLOURS):
        kept = (1 + dice.amount("saturation")) * (1 - dice.event("grey"))
        rest = torch.addcmul(rest, images.mean(1, keepdim=True), _per_image(gain * (1 - kept)))
        gain = gain * kept
    return torch.addcmul(rest, images, _per_image(gain))


def _disturb(inputs: Tensor, augmentation: Augmentation, generator: torch.Generator | None) -> Tensor:
    """Add noise to all entries, then set some to 0."""
    if augmentation.noise > 0:
        noise = torch.randn(inputs.shape, generator=generator, device=inputs.device, dtype=torch.float32)
        inputs = torch.add(inputs, noise, alpha=augmentation.noise)
    if augmentation.drop > 0:
        uniform = torch.rand(inputs.shape, generator=generator, device=inputs.device, dtype=torch.float32)
        inputs = inputs.masked_fill(uniform < augmentation.drop, 0.0)
    return inputs


def _cut_out(images: Tensor, dice: _Dice) -> Tensor:
    """Set a square to 0 whose centre is anywhere in the image and whose side is anything up to the largest."""
    if not dice.on("cutout"):
        return images
    height, width = images.shape[2:]
    side = dice.below("cutout_side", _pixels(dice.augmentation.cutout, min(height, width)) + 1)
    rows = _from_square(height, dice.below("cutout_row", height), side)
    columns = _from_square(width, dice.below("cutout_column", width), side)
    return images.masked_fill((rows[:, :, None] & columns[:, None])[:, None], 0.0)


def _from_square(length: int, centre: Tensor, side: Tensor) -> Tensor:
    """Which positions (N, length) lie in an interval of a whole length around a centre, both (N,)."""
    distance = torch.arange(length, device=side.device) - (centre - (side / 2).floor())[:, None]
    return (distance >= 0) & (distance < side[:, None])


def rotate_quarters(images: Tensor, turns: Tensor) -> Tensor:
    """Turn each square image (N, C, H, H) by its own multiple (N,) of 90 degrees, without interpolation.

    The direction is that of ``torch.rot90(image, turn, (1, 2))``; turns count modulo 4.
    """
    if images.ndim != 4 or images.shape[2] != images.shape[3]:
        raise InputError(
            f"images must be square, (N, C, H, H), to be turned by quarters, got shape {tuple(images.shape)}; "
            "crop or pad them."
        )
    if turns.shape != images.shape[:1] or turns.is_floating_point() or turns.dtype == torch.bool:
        raise InputError(
            f"turns must be one whole number per image, that is shape ({len(images)},), got {turns.dtype} of shape "
            f"{tuple(turns.shape)}; 1 stands for 90 degrees."
        )
    turns = _per_image(turns.remainder(4))
    halved = torch.where(turns >= 2, images.flip(2, 3), images)
    return torch.where(turns % 2 == 1, halved.transpose(2, 3).flip(2), halved)
