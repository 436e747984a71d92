"""Input scaling, fitted on training inputs and kept as buffers so that a run can carry it along."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar, Literal, Self, cast

import torch
from torch import Tensor, nn

from semimetric.core.checks import check_choice
from semimetric.core.errors import InputError
from semimetric.data.stored import Images, Inputs, at_a_time, pieces_of

PreprocessName = Literal["mean-image", "standardize", "whiten", "imagenet", "none"]

_CONTRAST_FLOOR, _WHITENING_FLOOR = 40.0, 10.0
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Statistics of red, green and blue in 0..1 on ImageNet."""


class Preprocess(nn.Module, ABC):
    """Maps raw inputs (N, ...) to float32 inputs of the same shape; its ``parts``, tensors, become its buffers."""

    parts: ClassVar[tuple[str, ...]] = ()

    def __init__(self, **tensors: Tensor) -> None:
        super().__init__()
        if sorted(tensors) != sorted(self.parts):
            raise InputError(
                f"{type(self).__name__} is made of the tensors {sorted(self.parts)}, but was given "
                f"{sorted(tensors)}; pass the state_dict of the same kind of preprocessing."
            )
        for name, tensor in tensors.items():
            self.register_buffer(name, tensor if tensor.ndim == 1 else tensor.float())  # columns may have large offsets

    @classmethod
    @abstractmethod
    def fit(cls, inputs: Inputs) -> Self:
        """Compute the buffers from training inputs."""

    @abstractmethod
    def forward(self, inputs: Tensor) -> Tensor:
        """Return the scaled inputs."""


class Identity(Preprocess):
    """Only converts to float32."""

    @classmethod
    def fit(cls, inputs: Inputs) -> Self:
        """Nothing to compute."""
        return cls()

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the inputs as float32."""
        return inputs.float()


class MeanImage(Preprocess):
    """Subtracts the training mean image (C, H, W) and leaves the range 0..255 alone."""

    parts = ("mean",)
    mean: Tensor

    @classmethod
    def fit(cls, inputs: Inputs) -> Self:
        """Average the training inputs."""
        return cls(mean=_mean(inputs))

    def forward(self, inputs: Tensor) -> Tensor:
        """Return inputs minus the mean."""
        _check_shape(inputs.shape[1:], self.mean.shape)
        return (_floating(inputs) - self.mean).float()


class Standardize(Preprocess):
    """Zero mean and unit variance per feature (d,) or channel (C, 1, 1); a constant one is only centred."""

    parts = ("mean", "std")
    mean: Tensor
    std: Tensor

    @classmethod
    def fit(cls, inputs: Inputs) -> Self:
        """Compute mean and standard deviation in two passes, in float64."""
        within = tuple(range(1, inputs.ndim - 1))  # of one example: the positions of an image, none of a vector
        mean = _mean(inputs)
        mean = mean.mean(dim=within, keepdim=True) if within else mean
        squares = sum(((chunk.double() - mean) ** 2).sum(0) for chunk in pieces_of(inputs))
        variance = cast(Tensor, squares) / len(inputs)
        std = (variance.mean(dim=within, keepdim=True) if within else variance).sqrt()
        return cls(mean=mean, std=torch.where(std <= 1e-12 * mean.abs(), torch.ones_like(std), std))

    def forward(self, inputs: Tensor) -> Tensor:
        """Return (inputs - mean) / std."""
        _check_shape(inputs.shape[1:2] + (1,) * (inputs.ndim - 2), self.mean.shape)
        return (_floating(inputs) - self.mean).div_(self.std).float()


class ImageNet(Standardize):
    """What networks trained on ImageNet expect of RGB images x in 0..255: (x/255 - IMAGENET_MEAN) / IMAGENET_STD."""

    @classmethod
    def fit(cls, inputs: Inputs) -> Self:
        """Nothing to compute, but inputs that are not colour images in the range 0..255 are refused."""
        if inputs.ndim != 4 or inputs.shape[1] != 3:
            raise InputError(
                f"'imagenet' needs RGB images (N, 3, H, W), but the inputs have shape {tuple(inputs.shape)}; "
                "use 'standardize' for others."
            )
        low, high = 0.0, 255.0
        if isinstance(inputs, Tensor) and inputs.dtype != torch.uint8 and len(inputs):
            low, high = map(float, inputs.aminmax())
        if low < 0 or not 1 < high <= 255:
            raise InputError(
                f"'imagenet' needs images in the range 0 to 255, but the inputs go from {low:g} to {high:g}; "
                "give the images as uint8."
            )
        mean, std = (torch.tensor(values).reshape(3, 1, 1) for values in (IMAGENET_MEAN, IMAGENET_STD))
        return cls(mean=(255 * mean).to(inputs.device), std=(255 * std).to(inputs.device))


class Whiten(Preprocess):
    """The CIFAR recipe of the MatConvNet toolbox: contrast normalisation of each image, then ZCA whitening.

    With x an image minus the training mean image, D its number of values and s(x) the standard deviation of
    those values (with D - 1):

    - contrast: y = (x - average of x) * contrast / max(40, s(x)), contrast = mean of s over training images;
    - whitening: W y with V diag(e) V^T the second moment of y over training images,
      W = V diag(sqrt(mean(e)) / max(sqrt(e), 10)) V^T. The toolbox takes the test images into that moment, too.

    References
    ----------
    Coates, Lee and Ng, An analysis of single-layer networks in unsupervised feature learning, AISTATS 2011.
    """

    parts = ("mean", "contrast", "projection")
    mean: Tensor
    contrast: Tensor
    projection: Tensor

    @classmethod
    def fit(cls, inputs: Inputs) -> Self:
        """Compute mean image, mean contrast and whitening matrix (D, D), in float64."""
        if inputs.ndim != 4:
            raise InputError(
                f"Whitening needs images (N, C, H, W), but the inputs have shape {tuple(inputs.shape)}; "
                "use 'standardize' for vectors."
            )
        mean = _mean(inputs)
        contrast = torch.cat([_without_own_mean(chunk.double() - mean).std(1) for chunk in pieces_of(inputs)]).mean()
        if not float(contrast) > 0:
            raise InputError("Whitening needs images that vary, but these are all alike; check the inputs.")
        moment = mean.new_zeros(mean.numel(), mean.numel())
        for chunk in pieces_of(inputs):
            rows = _normalise_contrast(chunk.double() - mean, contrast)
            moment.addmm_(rows.T, rows, alpha=1 / len(inputs))
        return cls(mean=mean, contrast=contrast, projection=_whitening(moment))

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the whitened images, in the shape they came."""
        _check_shape(inputs.shape[1:], self.mean.shape)
        rows = _normalise_contrast(_floating(inputs) - self.mean, self.contrast).float()
        return (rows @ self.projection).reshape(inputs.shape)


def _without_own_mean(images: Tensor) -> Tensor:
    rows = images.flatten(1)
    return rows - rows.mean(1, keepdim=True)


def _normalise_contrast(images: Tensor, contrast: Tensor) -> Tensor:
    """Give images (N, C, H, W) as rows (N, D), each about as contrasted as the average training image."""
    rows = _without_own_mean(images)
    return rows * (contrast / rows.std(1, keepdim=True).clamp(min=_CONTRAST_FLOOR))


def _whitening(moment: Tensor) -> Tensor:
    """Return V diag(sqrt(mean(e)) / max(sqrt(e), 10)) V^T of a second moment V diag(e) V^T (D, D)."""
    eigenvalues, vectors = torch.linalg.eigh(moment)
    eigenvalues = eigenvalues.clamp(min=0)
    gains = eigenvalues.mean().sqrt() / eigenvalues.sqrt().clamp(min=_WHITENING_FLOOR)
    whitening: Tensor = (vectors * gains) @ vectors.T
    return whitening


def _mean(inputs: Inputs) -> Tensor:
    if len(inputs) == 0:
        raise InputError("inputs must hold at least one example to fit a preprocessing on, but are empty.")
    total = sum(chunk.sum(0, dtype=torch.float64) for chunk in pieces_of(inputs))
    return cast(Tensor, total) / len(inputs)


def _floating(inputs: Tensor) -> Tensor:
    """Keep float64 until the mean is gone: a large offset would eat a float32's digits."""
    return inputs.to(torch.promote_types(inputs.dtype, torch.float32))


def _check_shape(found: tuple[int, ...], fitted: tuple[int, ...]) -> None:
    if tuple(found) != tuple(fitted):
        raise InputError(
            f"inputs must have the shape that the preprocessing was fitted on, but give {tuple(found)} where "
            f"it has {tuple(fitted)}; use inputs of the same kind as in training."
        )


def _kind(name: str) -> type[Preprocess]:
    kinds = {"mean-image": MeanImage, "standardize": Standardize, "whiten": Whiten, "imagenet": ImageNet}
    check_choice(name, (*kinds, "none"), "preprocess")
    return kinds.get(name, Identity)


def build_preprocess(name: PreprocessName, inputs: Inputs) -> Preprocess:
    """Fit the named preprocessing on training inputs (N, ...), on the device where they are."""
    return _kind(name).fit(inputs)


def restore_preprocess(name: PreprocessName, tensors: Mapping[str, Tensor]) -> Preprocess:
    """Rebuild the named preprocessing from its ``state_dict``, without data."""
    return _kind(name)(**tensors)


@torch.no_grad()
def apply_in_chunks(module: nn.Module, inputs: Tensor, chunk: int | None = None) -> Tensor:
    """Apply a shape-keeping module to inputs (N, ...), ``chunk`` at a time on its device; the result is on theirs."""
    if chunk is not None and chunk < 1:
        raise InputError(f"chunk must be at least 1, but is {chunk}.")
    device = next((buffer.device for buffer in module.buffers()), inputs.device)
    result = torch.empty(inputs.shape, dtype=torch.float32, device=inputs.device)
    size = chunk or at_a_time(inputs)
    for piece, target in zip(inputs.split(size), result.split(size), strict=True):
        target.copy_(module(piece.to(device)))
    return result


def scaled(preprocess: Preprocess, inputs: Inputs) -> Inputs:
    """All inputs, scaled; images that are kept as bytes are scaled when they are used."""
    return inputs.scaled_by(preprocess) if isinstance(inputs, Images) else apply_in_chunks(preprocess, inputs)
