"""Networks without their classifier as encoders: any classifier of timm or torchvision, or any module."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from semimetric.core.errors import InputError
from semimetric.core.extras import import_extra
from semimetric.data.preprocess import IMAGENET_MEAN, IMAGENET_STD

_HEADS = ("fc", "classifier", "heads", "head")
_POOLS = (nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d, nn.AvgPool2d, nn.MaxPool2d, nn.Flatten)

Statistics = tuple[Sequence[float], Sequence[float]]  # mean and standard deviation of red, green and blue


class Headless(nn.Module):
    """A network without its classifier, as an encoder: (N, ...) -> (N, d).

    Parameters
    ----------
    network : nn.Module
        Returns rows (N, d), tokens (N, t, d) or maps (N, d, h, w).
    statistics : tuple, optional
        Mean and standard deviation of each channel by which the network expects its images; they come normalised by
        those of ImageNet.
    """

    scale: Tensor | None
    shift: Tensor | None

    def __init__(self, network: nn.Module, statistics: Statistics | None = None) -> None:
        super().__init__()
        self.network = network
        scale, shift = (None, None) if statistics is None else conversion(*statistics)
        self.register_buffer("scale", scale, persistent=False)
        self.register_buffer("shift", shift, persistent=False)

    def forward(self, inputs: Tensor) -> Tensor:
        """One row for each input; maps (N, d, h, w) and tokens (N, t, d) are averaged over their positions."""
        if self.scale is not None and self.shift is not None:
            inputs = inputs * self.scale + self.shift
        output = self.network(inputs)
        if not isinstance(output, Tensor) or output.ndim not in (2, 3, 4):
            got = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
            raise InputError(
                f"the wrapped network must return rows (N, d), tokens (N, t, d) or maps (N, d, h, w), got {got}. "
                "Wrap a network with one output."
            )
        if output.ndim == 4:
            return output.mean((2, 3))
        return output.mean(1) if output.ndim == 3 else output


def wrap(model: nn.Module) -> nn.Module:
    """Make an encoder (N, ...) -> (N, d) of a classifier of timm or torchvision, or of any module.

    The classifier is removed from ``model`` itself: by timm's ``reset_classifier(0)``, or else by cutting the last
    linear layer or convolution, and the dropout before it, out of ``fc``, ``classifier``, ``heads`` or ``head``.

    Parameters
    ----------
    model : nn.Module
        Its inputs reach it unchanged, so normalise them as in its training.
    """
    remove_classifier(model)
    return Headless(model)


def remove_classifier(model: nn.Module) -> None:
    """Remove the classifier from a model; see ``wrap``."""
    reset = getattr(model, "reset_classifier", None)
    if callable(reset):
        reset(0)
        return
    name = next((name for name in _HEADS if isinstance(getattr(model, name, None), nn.Module)), None)
    if name is not None:
        setattr(model, name, _without_last_layer(getattr(model, name)))


def _without_last_layer(head: nn.Module) -> nn.Module:
    """The layers of a head before its last linear layer, and the pooling after a last convolution (SqueezeNet)."""
    if not isinstance(head, nn.Sequential):
        return nn.Identity()
    kept = last = max((i for i, layer in enumerate(head) if isinstance(layer, nn.Linear | nn.Conv2d)), default=0)
    while kept and isinstance(head[kept - 1], nn.Dropout):
        kept -= 1
    layers = list(head.named_children())
    pools = layers[last + 1 :] if isinstance(head[last], nn.Conv2d) else []
    return nn.Sequential(OrderedDict(layers[:kept] + [layer for layer in pools if isinstance(layer[1], _POOLS)]))


def conversion(mean: Sequence[float], std: Sequence[float]) -> tuple[Tensor, Tensor]:
    """Scale and shift (3, 1, 1) from y = (p - m) / s to (p - mean) / std, with m and s those of ImageNet, p in 0..1."""
    statistics = (IMAGENET_MEAN, IMAGENET_STD, tuple(mean), tuple(std))
    ours, spread, theirs, width = (torch.tensor(values)[:, None, None] for values in statistics)
    return spread / width, (ours - theirs) / width


def check_images(images: Tensor, network: str, smallest: int) -> None:
    """Refuse what are no RGB images (N, 3, H, W) of floating-point numbers, at least ``smallest`` pixels a side."""
    if images.ndim != 4 or images.shape[1] != 3 or min(images.shape[2:]) < smallest:
        raise InputError(
            f"{network} takes RGB images (N, 3, H, W) of at least {smallest} x {smallest} pixels, got shape "
            f"{tuple(images.shape)}. Enlarge the images, or repeat a grey channel three times."
        )
    if not images.is_floating_point():
        raise InputError(
            f"{network} takes images as normalised floating-point numbers, got {images.dtype}. "
            "Divide by 255, subtract IMAGENET_MEAN and divide by IMAGENET_STD, channel by channel."
        )


def unless_imagenet(mean: Any, std: Any) -> Statistics | None:
    """The statistics of a network's inputs; None if they are ImageNet's or not known."""
    statistics = tuple(mean or IMAGENET_MEAN), tuple(std or IMAGENET_STD)
    return None if statistics == (IMAGENET_MEAN, IMAGENET_STD) else statistics


def import_library(library: str, extra: str, encoder: str) -> ModuleType:
    """Import a package that ``extra`` of this one installs, for an encoder that needs it."""
    return import_extra(library, extra, f"encoder {encoder!r}")
