"""Encoders by name, and the one thing that is asked of any encoder: (N, ...) in, (N, d) out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from pathlib import Path

import torch
from torch import Tensor, nn

from semimetric.core.checks import check_choice
from semimetric.core.errors import InputError
from semimetric.encoders.adapters import LIBRARIES, library_encoder, rebuild_described
from semimetric.encoders.googlenet import SMALLEST, GoogLeNet, googlenet_of, load_googlenet
from semimetric.encoders.paper import cifar10_network, mnist_network
from semimetric.encoders.regions import RMAC
from semimetric.encoders.residual import ResNet9
from semimetric.encoders.small import linear, mlp, small_cnn

Shape = tuple[int, ...]


def _paper_mnist(shape: Shape, init: str) -> nn.Module:
    _require_shape("paper-mnist", shape, (1, 28, 28))
    return mnist_network(init)


def _paper_cifar10(shape: Shape, init: str) -> nn.Module:
    _require_shape("paper-cifar10", shape, (3, 32, 32))
    return cifar10_network(init)


def _mlp(shape: Shape, init: str) -> nn.Module:
    return mlp(prod(shape))


def _linear(shape: Shape, init: str) -> nn.Module:
    return linear(prod(shape))


def _small_cnn(shape: Shape, init: str) -> nn.Module:
    if len(shape) != 3 or min(shape[1:]) < 8:
        raise InputError(
            f"encoder 'small-cnn' needs images (channels, height, width) of at least 8 x 8 pixels, got {shape}. "
            "Use encoder 'mlp' for vectors."
        )
    return small_cnn(shape[0])


def _resnet9(shape: Shape, init: str) -> nn.Module:
    if len(shape) != 3 or min(shape[1:]) < 16:
        raise InputError(
            f"encoder 'resnet9' needs images (channels, height, width) of at least 16 x 16 pixels, got {shape}. "
            "Use 'small-cnn' for smaller images and 'mlp' for vectors."
        )
    return ResNet9(shape[0])


_ENCODERS: dict[str, Callable[[Shape, str], nn.Module]] = {
    "paper-mnist": _paper_mnist,
    "paper-cifar10": _paper_cifar10,
    "small-cnn": _small_cnn,
    "mlp": _mlp,
    "linear": _linear,
    "resnet9": _resnet9,
}

_PRETRAINED: dict[str, Callable[[GoogLeNet], nn.Module]] = {
    "googlenet": lambda network: network,
    "googlenet-rmac": RMAC,
}


def takes_photographs(name: str) -> bool:
    """Whether an encoder is one of photographs that come normalised by the statistics of ImageNet."""
    return name in _PRETRAINED or name.startswith(tuple(f"{library}:" for library in LIBRARIES))


def encoder_names() -> tuple[str, ...]:
    """Names that ``build_encoder`` knows, besides those of libraries, such as ``timm:NAME``."""
    return (*_ENCODERS, *_PRETRAINED)


def build_encoder(
    name: str, input_shape: Shape, seed: int, init: str = "gaussian", weights: Path | str | None = None
) -> nn.Module:
    """The named encoder, from random numbers drawn from ``seed`` or from a file.

    ``init`` concerns the paper's networks only. ``weights`` is a local file for ``googlenet``, ``googlenet-rmac``,
    ``timm:NAME``, ``torchvision:NAME`` and ``transformers:ORG/NAME``: encoders of photographs (3, height, width) that
    come normalised by the statistics of ImageNet. They, too, start from random numbers where no file is given, but for
    those of transformers, whose snapshot folder tells what they are; nothing is downloaded.
    """
    from_library = name.startswith(tuple(f"{library}:" for library in LIBRARIES))
    if not from_library:
        check_choice(name, (*encoder_names(), *(f"{library}:NAME" for library in LIBRARIES)), "encoder")
    check_choice(init, ("gaussian", "he"), "init")
    if name in _ENCODERS and weights is not None:
        raise InputError(
            f"weights must be left out for encoder {name!r}, which has no pretrained weights, got {str(weights)!r}. "
            f"Encoders that take a file are {', '.join(_PRETRAINED)} and those of {', '.join(LIBRARIES)}."
        )
    if name not in _ENCODERS:
        _require_photographs(name, tuple(input_shape))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if from_library:
            return library_encoder(name, weights)
        if name in _PRETRAINED:
            return _PRETRAINED[name](GoogLeNet() if weights is None else load_googlenet(weights))
        return _ENCODERS[name](tuple(input_shape), init)


def rebuild_encoder(name: str, input_shape: Shape, tensors: Mapping[str, Tensor], init: str = "gaussian") -> nn.Module:
    """The named encoder with the tensors of its ``state_dict``; it takes no file of weights.

    Of the two GoogLeNets, and of models of transformers, the tensors tell which it is. Tensors that do not fit are a
    ``RuntimeError`` of torch.
    """
    if name.startswith("transformers:"):
        with torch.random.fork_rng(devices=[]):
            return rebuild_described(name, tensors)
    if name in _PRETRAINED:
        with torch.random.fork_rng(devices=[]):
            encoder = _PRETRAINED[name](googlenet_of(tensors))
    else:
        encoder = build_encoder(name, input_shape, seed=0, init=init)
    encoder.load_state_dict(tensors)
    return encoder


def output_width(encoder: nn.Module, example: Tensor) -> int:
    """Width d of an encoder's (N, d) output, found by passing two examples; anything else is refused."""
    was_training = encoder.training
    encoder.eval()
    with torch.no_grad():
        try:
            output = encoder(example[:2])
        except (RuntimeError, AssertionError, ValueError) as error:
            raise InputError(
                f"the encoder cannot take inputs of shape {tuple(example.shape[1:])}: {error}. "
                "Choose an encoder that fits the data."
            ) from error
    encoder.train(was_training)
    if not isinstance(output, Tensor) or output.ndim != 2 or len(output) != len(example[:2]):
        got = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
        raise InputError(f"the encoder must return one row per example, (N, d); for 2 examples it returned {got}.")
    return int(output.shape[1])


def _require_shape(name: str, shape: Shape, expected: Shape) -> None:
    if tuple(shape) != expected:
        raise InputError(
            f"encoder {name!r} takes inputs of shape {expected}, got {tuple(shape)}. "
            "Use 'small-cnn' for other images and 'mlp' for vectors."
        )


def _require_photographs(name: str, shape: Shape) -> None:
    if len(shape) != 3 or shape[0] != 3 or min(shape[1:]) < SMALLEST:
        raise InputError(
            f"encoder {name!r} needs colour images (3, height, width) of at least {SMALLEST} x {SMALLEST} pixels, got "
            f"{shape}. Use 'small-cnn' or 'resnet9' for smaller or grey images and 'mlp' for vectors."
        )
