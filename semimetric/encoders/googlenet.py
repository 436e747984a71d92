"""GoogLeNet (Szegedy et al., CVPR 2015) without its classifier: BVLC's, as in the paper, or torchvision's.

Torchvision's has batch normalisation instead of biases and response normalisation, and 3x3 for 5x5 convolutions.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from semimetric.core.draws import OwnDraws
from semimetric.core.errors import InputError
from semimetric.data.preprocess import IMAGENET_MEAN, IMAGENET_STD
from semimetric.encoders.headless import check_images, conversion
from semimetric.encoders.regions import RMAC, AverageMaximum
from semimetric.encoders.spec import EncoderSpec
from semimetric.encoders.weights import load_tensors, read_weights

SMALLEST = 64  # height and width of an image, in pixels

_BVLC_MEAN = (123.0, 117.0, 104.0)  # of red, green and blue in 0..255
_BVLC, _TORCHVISION = "conv1/7x7_s2.w", "conv1.conv.weight"  # the first tensor of each file
_NEAR = 2  # channels on either side in response normalisation
_STRENGTH = 1e-4 / (2 * _NEAR + 1)
_NO_FEATURES = ("loss1/", "loss2/", "loss3/", "fc.", "aux1.", "aux2.")  # the classifiers of BVLC and torchvision

_INCEPTIONS = {
    "3a": (192, 64, 96, 128, 16, 32, 32),
    "3b": (256, 128, 128, 192, 32, 96, 64),
    "4a": (480, 192, 96, 208, 16, 48, 64),
    "4b": (512, 160, 112, 224, 24, 64, 64),
    "4c": (512, 128, 128, 256, 24, 64, 64),
    "4d": (512, 112, 144, 288, 32, 64, 64),
    "4e": (528, 256, 160, 320, 32, 128, 128),
    "5a": (832, 256, 160, 320, 32, 128, 128),
    "5b": (832, 384, 192, 384, 48, 128, 128),
}
"""Channels in, then of the 1x1, 3x3 reduction, 3x3, 5x5 reduction, 5x5 and pool projection: Table 1 of the paper."""


class ResponseNorm(nn.Module):
    """Local response normalisation as in Caffe: y = x / n^0.75 with n = 1 + 1e-4 / 5 Σ x² over five channels.

    Torch's own takes an average pool in three dimensions, which is three times slower. In bfloat16, sums over channels
    are a product with a band of ones, which adds in float32. Squares, sums and what follows are rounded to bfloat16
    in turn, so values are off by about 0.4 %. Float16, in which the square of 256 overflows, is computed in float32.
    """

    def forward(self, maps: Tensor) -> Tensor:
        """Maps (N, C, H, W) in the same shape and type."""
        normed: Tensor = _Normed.apply(maps.float() if maps.dtype == torch.float16 else maps)  # type: ignore[no-untyped-call]
        return normed.to(maps.dtype)


class _Normed(torch.autograd.Function):
    """With its own backward pass: dx = dy n^-0.75 - 1.5 * 2e-5 x Σ dy x n^-1.75, where torch would keep every step.

    It keeps the maps alone, so that the backward pass has a derivative, too.
    """

    @staticmethod
    def forward(maps: Tensor) -> Tensor:
        with _without_autocast(maps):
            root = _inverse_root(maps)
            return maps * (root * root.sqrt())

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (maps,) = ctx.saved_tensors
        with _without_autocast(maps):
            root = _inverse_root(maps)
            scaled = gradient * (root * root.sqrt())
            sums = _sums_of_near_channels(scaled * maps * (root * root))
            return torch.addcmul(scaled, maps, sums, value=-1.5 * _STRENGTH)


def _without_autocast(maps: Tensor) -> AbstractContextManager[Any]:
    """Without autocast, which would make float32 of squares and products; some devices have none."""
    kind = maps.device.type
    return torch.autocast(kind, enabled=False) if torch.amp.is_autocast_available(kind) else nullcontext()


def _inverse_root(maps: Tensor) -> Tensor:
    """n^-0.5 (N, C, H, W)."""
    return torch.rsqrt(_sums_of_near_channels(maps * maps).mul_(_STRENGTH).add_(1.0))


def _sums_of_near_channels(values: Tensor) -> Tensor:
    """Sums (N, C, H, W) over each channel and the two before and after it; those of bfloat16 are rounded once."""
    channels = values.shape[1]
    if values.dtype == torch.bfloat16:
        numbers = torch.arange(channels, device=values.device)
        band = ((numbers[:, None] - numbers).abs() <= _NEAR).to(values.dtype)
        return nn.functional.conv2d(values, band[:, :, None, None])
    padded = nn.functional.pad(values, (0, 0, 0, 0, _NEAR, _NEAR))
    sums = values + padded[:, :channels]
    for first in (1, 3, 4):  # the other channels before and after each one
        sums += padded[:, first : first + channels]
    return sums


class Unit(nn.Module):
    """A convolution that keeps the size (but for its stride), batch normalisation if asked for, ReLU."""

    def __init__(self, channels: int, out: int, kernel: int, batch_norm: bool, stride: int = 1) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(channels, out, kernel, stride, kernel // 2, bias=not batch_norm)
        self.norm = nn.BatchNorm2d(out, eps=1e-3) if batch_norm else nn.Identity()
        nn.init.kaiming_normal_(self.convolution.weight, nonlinearity="relu")
        if self.convolution.bias is not None:
            nn.init.zeros_(self.convolution.bias)

    def forward(self, images: Tensor) -> Tensor:
        """Maps (N, channels, H, W) -> (N, out, H / stride, W / stride)."""
        return nn.functional.relu(self.norm(self.convolution(images)), inplace=True)


class Inception(nn.Module):
    """Four branches side by side, joined along the channels: 1x1, 3x3, 5x5, and a 3x3 maximum."""

    def __init__(self, widths: tuple[int, ...], batch_norm: bool) -> None:
        super().__init__()
        channels, one, three_reduce, three, five_reduce, five, pool = widths
        unit = partial(Unit, batch_norm=batch_norm)
        self.one = unit(channels, one, 1)
        self.three_reduce = unit(channels, three_reduce, 1)
        self.three = unit(three_reduce, three, 3)
        self.five_reduce = unit(channels, five_reduce, 1)
        self.five = unit(five_reduce, five, 3 if batch_norm else 5)
        self.pool = unit(channels, pool, 1)

    def forward(self, maps: Tensor) -> Tensor:
        """Maps in the same height and width."""
        three, five = self.three(self.three_reduce(maps)), self.five(self.five_reduce(maps))
        return torch.cat((self.one(maps), three, five, self.pool(nn.functional.max_pool2d(maps, 3, 1, 1))), 1)


class GoogLeNet(nn.Module):
    """(N, 3, H, W) -> (N, 1024) for photographs from 64 pixels up; 6.0 million weights, at first random (He).

    Images are RGB, ``(x / 255 - IMAGENET_MEAN) / IMAGENET_STD``. The network converts them to what its weights were
    trained on: BGR in 0..255 minus the channels' means (BVLC), or RGB in -1..1 (torchvision).

    Parameters
    ----------
    batch_norm : bool
        Torchvision's network instead of BVLC's.
    """

    scale: Tensor
    shift: Tensor

    def __init__(self, batch_norm: bool = False) -> None:
        super().__init__()
        self.layers = _layers(batch_norm)
        self.blue_first = not batch_norm
        scale, shift = conversion((0.5,) * 3, (0.5,) * 3)  # to -1..1
        if not batch_norm:
            mean, std = (torch.tensor(values)[:, None, None] for values in (IMAGENET_MEAN, IMAGENET_STD))
            scale, shift = 255 * std, 255 * mean - torch.tensor(_BVLC_MEAN)[:, None, None]
        self.register_buffer("scale", scale, persistent=False)
        self.register_buffer("shift", shift, persistent=False)

    def features(self, images: Tensor) -> Tensor:
        """Maps (N, 1024, h, w) before the average pool, with h about H / 32."""
        check_images(images, "GoogLeNet", SMALLEST)
        if images.is_cpu:  # which is half as fast again with the channels last
            images = images.contiguous(memory_format=torch.channels_last)
        rescaled = images * self.scale + self.shift
        maps: Tensor = self.layers(rescaled.flip(1) if self.blue_first else rescaled)
        return maps

    def forward(self, images: Tensor) -> Tensor:
        """One row for each image: the average over positions."""
        return self.features(images).mean((2, 3))


def _layers(batch_norm: bool) -> nn.Sequential:
    """The layers in Caffe's order: the first response normalisation follows its pool, the second precedes it."""
    unit = partial(Unit, batch_norm=batch_norm)
    pool = partial(nn.MaxPool2d, kernel_size=3, stride=2, ceil_mode=True)
    norm = nn.Identity() if batch_norm else ResponseNorm()
    layers: OrderedDict[str, nn.Module] = OrderedDict(conv1=unit(3, 64, 7, stride=2), pool1=pool(), norm1=norm)
    layers |= OrderedDict(conv2_reduce=unit(64, 64, 1), conv2=unit(64, 192, 3), norm2=norm, pool2=pool())
    for name, widths in _INCEPTIONS.items():
        if name == "4a":
            layers["pool3"] = pool()
        if name == "5a":
            layers["pool4"] = pool(kernel_size=2 if batch_norm else 3)
        layers[name] = Inception(widths, batch_norm)
    return nn.Sequential(layers)


def load_googlenet(path: Path | str) -> GoogLeNet:
    """GoogLeNet with the weights of a file; those of classifiers and auxiliary heads are ignored.

    Parameters
    ----------
    path : path
        BVLC's weights in a .npz or .safetensors with ``conv1/7x7_s2.w`` (out, in, h, w), ``conv1/7x7_s2.b`` and so on,
        in any precision; or torchvision's ``state_dict`` in a .pth or .safetensors.
    """
    tensors = read_weights(path)
    if not _recognises(tensors):
        raise InputError(
            f"the weights in {path} are not GoogLeNet's: they hold neither {_BVLC!r}, as the BVLC network, nor "
            f"{_TORCHVISION!r}, as torchvision's. Give a file of one of these two."
        )
    batch_norm = _TORCHVISION in tensors
    with OwnDraws():
        network = GoogLeNet(batch_norm)
    ours = _names_here(batch_norm)
    load_tensors(network, {ours.get(name, name): tensor for name, tensor in tensors.items()}, path, _NO_FEATURES)
    return network


def _recognises(tensors: Mapping[str, Tensor]) -> bool:
    """Whether a file with these tensors is for one of the two networks, as BVLC or torchvision wrote it."""
    return not {_BVLC, _TORCHVISION}.isdisjoint(tensors)


def _names_here(batch_norm: bool) -> dict[str, str]:
    """The names of the network's tensors, by those in torchvision's file or else in BVLC's."""
    units = {"conv1": ("conv1/7x7_s2", "conv1"), "conv2_reduce": ("conv2/3x3_reduce", "conv2")}
    units["conv2"] = ("conv2/3x3", "conv3")
    branches = {"one": ("1x1", "branch1"), "pool": ("pool_proj", "branch4.1")}
    branches |= {"three_reduce": ("3x3_reduce", "branch2.0"), "three": ("3x3", "branch2.1")}
    branches |= {"five_reduce": ("5x5_reduce", "branch3.0"), "five": ("5x5", "branch3.1")}
    for name in _INCEPTIONS:
        for branch, (bvlc, torchvision) in branches.items():
            units[f"{name}.{branch}"] = (f"inception_{name}/{bvlc}", f"inception{name}.{torchvision}")
    norms = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    ends = {".conv.weight": "convolution.weight"} | {f".bn.{value}": f"norm.{value}" for value in norms}
    ends = ends if batch_norm else {".w": "convolution.weight", ".b": "convolution.bias"}
    return {
        f"{theirs[batch_norm]}{end}": f"layers.{ours}.{own}"
        for ours, theirs in units.items()
        for end, own in ends.items()
    }


def googlenet_spec(name: str, around: Callable[[GoogLeNet], nn.Module], **further: Any) -> EncoderSpec:
    """The encoder that ``around`` makes of GoogLeNet; the tensors of a ``state_dict`` say which of the two it is."""

    def rebuild(tensors: Mapping[str, Tensor]) -> nn.Module:
        encoder = around(GoogLeNet(any(key.endswith("layers.conv1.norm.running_mean") for key in tensors)))
        encoder.load_state_dict(tensors)
        return encoder

    return EncoderSpec(
        name=name,
        build=lambda shape, init: around(GoogLeNet()),
        load=lambda path: around(load_googlenet(path)),
        rebuild=rebuild,
        smallest=SMALLEST,
        **further,
    )


GOOGLENET = googlenet_spec("googlenet", lambda network: network, recognises=_recognises, checkpoint="googlenet")
GOOGLENET_RMAC = googlenet_spec("googlenet-rmac", RMAC)
GOOGLENET_AVGMAX = googlenet_spec("googlenet-avgmax", AverageMaximum)
GOOGLENET_AVGMAX_224 = googlenet_spec(
    "googlenet-avgmax-224", partial(AverageMaximum, side=224, training_side=160), side=320
)
