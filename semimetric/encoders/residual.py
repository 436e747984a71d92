"""A wide and shallow residual network for small colour images (D. Page, "How to train your ResNet", 2018)."""

from __future__ import annotations

from torch import Tensor, nn

from semimetric.encoders.spec import EncoderSpec


class Residual(nn.Module):
    """x + f(x) with f two 3x3 convolutions."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.body = nn.Sequential(_convolution(channels, channels), _convolution(channels, channels))

    def forward(self, images: Tensor) -> Tensor:
        """Images (N, C, H, W) in the same shape."""
        added: Tensor = images + self.body(images)
        return added


class ResNet9(nn.Module):
    """(N, channels, H, W) -> (N, width) for images of 16 to 64 pixels; 6.6 million weights."""

    def __init__(self, channels: int, width: int = 128, base: int = 64) -> None:
        super().__init__()
        self.stages = nn.Sequential(
            _convolution(channels, base),
            *(_convolution(base, 2 * base), nn.MaxPool2d(2), Residual(2 * base)),
            *(_convolution(2 * base, 4 * base), nn.MaxPool2d(2)),
            *(_convolution(4 * base, 8 * base), nn.MaxPool2d(2), Residual(8 * base)),
        )
        self.last = nn.Linear(8 * base, width)

    def forward(self, images: Tensor) -> Tensor:
        """One row for each image: the maximum over positions, projected."""
        rows: Tensor = self.last(self.stages(images).amax((2, 3)))
        return rows


class ResNet9Maxima(nn.Module):
    """(N, channels, H, W) -> (N, 8 base) for images of 16 to 64 pixels; 6.6 million weights.

    ``ResNet9`` without its last projection. Maps are pooled before they are normalised, so a quarter is normalised.
    """

    def __init__(self, channels: int, base: int = 64) -> None:
        super().__init__()
        self.stages = nn.Sequential(
            _convolution(channels, base),
            *(_convolution(base, 2 * base, pool=True), Residual(2 * base)),
            _convolution(2 * base, 4 * base, pool=True),
            *(_convolution(4 * base, 8 * base, pool=True), Residual(8 * base)),
        )

    def forward(self, images: Tensor) -> Tensor:
        """One row for each image: the maximum over positions."""
        rows: Tensor = self.stages(images).amax((2, 3))
        return rows


def _convolution(channels: int, out: int, pool: bool = False) -> nn.Sequential:
    convolution = nn.Conv2d(channels, out, 3, padding=1, bias=False)
    return nn.Sequential(convolution, *([nn.MaxPool2d(2)] if pool else []), nn.BatchNorm2d(out), nn.ReLU())


RESNET9 = EncoderSpec(name="resnet9", build=lambda shape, init: ResNet9(shape[0]), smallest=16)
RESNET9_512 = EncoderSpec(name="resnet9-512", build=lambda shape, init: ResNet9Maxima(shape[0]), smallest=16)
