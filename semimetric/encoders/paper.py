"""The two small convolutional networks of Dutta, Harandi and Sekhar (AAAI 2021), adapted there from MatConvNet.

MatConvNet pads its 3x3/2 pooling at the bottom and right only, and does not count the padding: torch's ``ceil_mode``.
"""

from __future__ import annotations

from functools import partial

from torch import nn

from semimetric.encoders.spec import EncoderSpec


def mnist_network(init: str = "gaussian") -> nn.Sequential:
    """(N, 1, 28, 28) -> (N, 128) for MNIST and Fashion-MNIST, with a single ReLU.

    Weights start as published, N(0, 0.01^2) (``init="gaussian"``), or scaled to the fan-in of a layer (``init="he"``).
    """
    network = nn.Sequential(
        *(nn.Conv2d(1, 20, 5), nn.MaxPool2d(2, 2)),
        *(nn.Conv2d(20, 50, 5), nn.MaxPool2d(2, 2)),
        *(nn.Conv2d(50, 500, 4), nn.ReLU(), nn.Flatten(), nn.Linear(500, 128)),
    )
    _initialise(network, (0.01, 0.01, 0.01, 0.01), init)
    return network


def cifar10_network(init: str = "gaussian") -> nn.Sequential:
    """(N, 3, 32, 32) -> (N, 64) for CIFAR-10; ends in a ReLU, so no embedding has a negative entry."""
    average = partial(nn.AvgPool2d, 3, 2, ceil_mode=True, count_include_pad=False)
    network = nn.Sequential(
        *(nn.Conv2d(3, 32, 5, padding=2), nn.MaxPool2d(3, 2, ceil_mode=True), nn.ReLU()),
        *(nn.Conv2d(32, 32, 5, padding=2), nn.ReLU(), average()),
        *(nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), average()),
        *(nn.Conv2d(64, 64, 4), nn.ReLU(), nn.Flatten()),
    )
    _initialise(network, (0.01, 0.05, 0.05, 0.05), init)
    return network


def _initialise(network: nn.Sequential, deviations: tuple[float, ...], init: str) -> None:
    layers = [layer for layer in network if isinstance(layer, nn.Conv2d | nn.Linear)]
    for layer, deviation in zip(layers, deviations, strict=True):
        if init == "he":
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
        else:
            nn.init.normal_(layer.weight, std=deviation)
        assert layer.bias is not None
        nn.init.zeros_(layer.bias)


PAPER_MNIST = EncoderSpec(name="paper-mnist", build=lambda shape, init: mnist_network(init), shape=(1, 28, 28))
PAPER_CIFAR10 = EncoderSpec(name="paper-cifar10", build=lambda shape, init: cifar10_network(init), shape=(3, 32, 32))
