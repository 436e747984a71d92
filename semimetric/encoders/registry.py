"""Encoders by name. A new one is a file with its spec and a line here; listing the names does not import torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from semimetric.core.checks import check_choice
from semimetric.core.errors import InputError
from semimetric.core.registry import Registry
from semimetric.encoders.spec import PHOTO_SIDE, EncoderSpec, Shape

if TYPE_CHECKING:
    from torch import Tensor, nn

_FROM_SCRATCH = {
    "paper-mnist": "semimetric.encoders.paper:PAPER_MNIST",
    "paper-cifar10": "semimetric.encoders.paper:PAPER_CIFAR10",
    "small-cnn": "semimetric.encoders.small:SMALL_CNN",
    "mlp": "semimetric.encoders.small:MLP",
    "linear": "semimetric.encoders.small:LINEAR",
    "resnet9": "semimetric.encoders.residual:RESNET9",
    "resnet9-512": "semimetric.encoders.residual:RESNET9_512",
    "wrn28-2": "semimetric.encoders.wide:WRN28_2",
}

_PRETRAINED = {
    "googlenet": "semimetric.encoders.googlenet:GOOGLENET",
    "googlenet-rmac": "semimetric.encoders.googlenet:GOOGLENET_RMAC",
    "googlenet-avgmax": "semimetric.encoders.googlenet:GOOGLENET_AVGMAX",
    "googlenet-avgmax-224": "semimetric.encoders.googlenet:GOOGLENET_AVGMAX_224",
    "efficientnet-lite0": "semimetric.encoders.efficientnet_lite:EFFICIENTNET_LITE0",
    "efficientnet-lite1": "semimetric.encoders.efficientnet_lite:EFFICIENTNET_LITE1",
    "efficientnet-lite2": "semimetric.encoders.efficientnet_lite:EFFICIENTNET_LITE2",
    "efficientnet-lite2-gem": "semimetric.encoders.efficientnet_lite:EFFICIENTNET_LITE2_GEM",
}

ENCODERS: Registry[EncoderSpec] = Registry("encoder", "semimetric.encoders", _FROM_SCRATCH | _PRETRAINED)

LIBRARIES: Registry[Callable[[str], EncoderSpec]] = Registry(
    "library of encoders",
    "semimetric.encoder_libraries",
    {
        "timm": "semimetric.encoders.classifiers:timm_spec",
        "torchvision": "semimetric.encoders.classifiers:torchvision_spec",
        "transformers": "semimetric.encoders.transformers_models:transformers_spec",
    },
)
"""Libraries of pretrained networks, by the prefix of names such as ``timm:resnet50``; each makes the spec of a name."""


def register_encoder(spec: EncoderSpec) -> EncoderSpec:
    """Make an encoder known to ``build_encoder`` and the command line, and return its spec.

    An installed package offers one without a call, as an entry point of its name in the group ``semimetric.encoders``.

    Parameters
    ----------
    spec : EncoderSpec
        Its name must not be taken.
    """
    return ENCODERS.register(spec.name, spec)


def encoder_names() -> tuple[str, ...]:
    """Names that ``build_encoder`` knows, besides those of libraries, such as ``timm:NAME``."""
    return tuple(ENCODERS)


def takes_photographs(name: str) -> bool:
    """Whether an encoder is pretrained and takes photographs normalised by the statistics of ImageNet."""
    if name in _PRETRAINED or _library(name):
        return True
    return name not in _FROM_SCRATCH and name in ENCODERS and ENCODERS[name].load is not None


def photo_side(name: str) -> int:
    """Side, in pixels, of the squares to which photographs are brought for a pretrained encoder."""
    return PHOTO_SIDE if _library(name) else ENCODERS[name].side


def pretrained_specs() -> list[EncoderSpec]:
    """The specs of all pretrained encoders but those of libraries."""
    return [ENCODERS[name] for name in ENCODERS if takes_photographs(name)]


def _library(name: str) -> str:
    """The library that a name such as ``timm:resnet50`` begins with; empty if there is none."""
    prefix, colon, _ = name.partition(":")
    return prefix if colon and prefix in LIBRARIES else ""


def _find(name: str) -> EncoderSpec:
    if library := _library(name):
        return LIBRARIES[library](name)
    check_choice(name, (*ENCODERS, *(f"{library}:NAME" for library in LIBRARIES)), "encoder")
    return ENCODERS[name]


def build_encoder(
    name: str, input_shape: Shape, seed: int, init: str = "gaussian", weights: Path | str | None = None
) -> nn.Module:
    """The named encoder with random weights drawn from ``seed``, or with those of a file; nothing is downloaded.

    Parameters
    ----------
    name : str
        One of ``encoder_names()``, or ``timm:NAME``, ``torchvision:NAME`` or ``transformers:ORG/NAME``.
    input_shape : tuple of int
        Shape of one example. A pretrained encoder takes photographs (3, height, width).
    seed : int
        Decides all random weights; torch's own random state is left as it was.
    init : str
        Random weights of the paper's networks: "gaussian" as published, or "he".
    weights : path, optional
        File with the weights of a pretrained encoder. Without it the encoder is random, except for those of
        transformers, which need the file.
    """
    from semimetric.core.draws import OwnDraws, turns

    spec, shape = _find(name), tuple(input_shape)
    check_choice(init, ("gaussian", "he"), "init")
    _check_shape(spec, shape)
    if spec.load is None and weights is not None:
        raise InputError(
            f"weights must be left out for encoder {name!r}, which has no pretrained weights, got {str(weights)!r}. "
            f"Encoders that take a file are {', '.join(spec.name for spec in pretrained_specs())} and those of "
            f"{', '.join(LIBRARIES)}."
        )
    with OwnDraws(seed) if name in _FROM_SCRATCH | _PRETRAINED else turns(seed):
        return spec.build(shape, init) if weights is None or spec.load is None else spec.load(Path(weights))


def rebuild_encoder(name: str, input_shape: Shape, tensors: Mapping[str, Tensor], init: str = "gaussian") -> nn.Module:
    """The named encoder with the tensors of its ``state_dict``; it needs no file of weights.

    Parameters
    ----------
    name, input_shape, init
        As for ``build_encoder``.
    tensors : mapping of str to Tensor
        The ``state_dict``; tensors that do not fit are a ``RuntimeError`` of torch.
    """
    from semimetric.core.draws import turns

    spec = _find(name)
    if spec.rebuild is not None:
        with turns(seed=0):
            return spec.rebuild(tensors)
    encoder = build_encoder(name, input_shape, seed=0, init=init)
    encoder.load_state_dict(tensors)
    return encoder


def weights_name(path: Path) -> str:
    """The pretrained encoder that a file of weights is for, recognised by the names of its tensors.

    Parameters
    ----------
    path : Path
        A file that ``build_encoder`` takes as weights.
    """
    from semimetric.encoders.weights import read_weights

    tensors, known = read_weights(path), pretrained_specs()
    for spec in reversed(known):  # a variant that is better on its own follows the plain network
        if spec.recognises(tensors):
            return spec.name
    raise InputError(
        f"the weights in {path} are of none of {', '.join(spec.name for spec in known)}. Name their network as "
        "encoder, such as timm:resnet50 or torchvision:resnet50."
    )


def _check_shape(spec: EncoderSpec, shape: Shape) -> None:
    if spec.shape is not None and shape != spec.shape:
        raise InputError(
            f"encoder {spec.name!r} takes inputs of shape {spec.shape}, got {shape}. Use 'small-cnn' for other images "
            "and 'mlp' for vectors."
        )
    colour = spec.load is not None
    if (spec.smallest or colour) and (len(shape) != 3 or min(shape[1:]) < spec.smallest or (colour and shape[0] != 3)):
        others = "smaller or grey" if colour else "smaller"
        first = "Bring photographs to a larger side, or use" if colour else "Use"
        smaller = "Use" if spec.name == "small-cnn" else f"{first} 'small-cnn' for {others} images and"
        images = "colour images (3, height, width)" if colour else "images (channels, height, width)"
        raise InputError(
            f"encoder {spec.name!r} needs {images} of at least {spec.smallest} x {spec.smallest} pixels, got {shape}. "
            f"{smaller} 'mlp' for vectors."
        )
