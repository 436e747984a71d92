"""Wide residual networks for small images (S. Zagoruyko, N. Komodakis, "Wide residual networks", BMVC 2016)."""

from __future__ import annotations

from torch import Tensor, nn

from semimetric.encoders.spec import EncoderSpec

BATCH_SHARE = 0.001
"""How far a batch moves the running statistics: torch's momentum for TensorFlow's 0.999.

Semi-supervised learning trains for many steps on few labels, and reads the network between them. Slow statistics, of
about a thousand batches, keep what it answers steady. After s steps 0.999^s of their start is left in them, so a
network of few hundred steps is not ready to be read.
"""

SLOPE = 0.1
"""Slope of LeakyReLU below zero."""

STEM = 16


class WideBlock(nn.Module):
    """x + f(a(x)), where a is batch normalisation and LeakyReLU, and f two 3x3 convolutions with another a between.

    Where the shape changes, a 1x1 convolution of a(x) takes the place of the first x.
    """

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.activate = _activation(channels)
        self.body = nn.Sequential(_convolution(channels, out, stride), _activation(out), _convolution(out, out))
        same = channels == out and stride == 1
        self.project = None if same else nn.Conv2d(channels, out, 1, stride, bias=False)

    def forward(self, maps: Tensor) -> Tensor:
        """Maps (N, channels, H, W) -> (N, out, H / stride, W / stride), rounded up."""
        active = self.activate(maps)
        kept = maps if self.project is None else self.project(active)
        added: Tensor = kept + self.body(active)
        return added


class WideResNet(nn.Module):
    """(N, channels, H, W) -> (N, 64 width) for small images; three groups of blocks, the last two halve the sides.

    Its depth is 6 ``blocks`` + 4. Weights start as He et al. propose (ICCV 2015), for the gradient's variance.
    """

    def __init__(self, channels: int, width: int = 2, blocks: int = 4) -> None:
        super().__init__()
        before, groups = STEM, []
        for out, stride in ((16 * width, 1), (32 * width, 2), (64 * width, 2)):
            groups += [WideBlock(before, out, stride), *(WideBlock(out, out, 1) for _ in range(blocks - 1))]
            before = out
        self.maps = nn.Sequential(_convolution(channels, STEM), *groups, _activation(before))
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, a=SLOPE, mode="fan_out")

    def forward(self, images: Tensor) -> Tensor:
        """One row for each image: the average over positions."""
        rows: Tensor = self.maps(images).mean((2, 3))
        return rows


def _convolution(channels: int, out: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(channels, out, 3, stride, padding=1, bias=False)


def _activation(channels: int) -> nn.Sequential:
    return nn.Sequential(nn.BatchNorm2d(channels, momentum=BATCH_SHARE), nn.LeakyReLU(SLOPE, inplace=True))


WRN28_2 = EncoderSpec(name="wrn28-2", build=lambda shape, init: WideResNet(shape[0]), smallest=8)
