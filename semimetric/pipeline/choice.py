"""What fits a user's data where they do not say: the network, how inputs are scaled, the settings of the training."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from semimetric.core.checks import check_choice
from semimetric.core.errors import InputError
from semimetric.core.settings import build_settings
from semimetric.data import PreprocessName
from semimetric.data.samples import Kind
from semimetric.encoders import build_encoder, encoder_names, installed_encoder, takes_photographs, weights_name
from semimetric.encoders.installed import SIDE as PRETRAINED_SIDE
from semimetric.encoders.photographs import Sight
from semimetric.encoders.registry import LIBRARIES
from semimetric.methods import METHODS, method_names
from semimetric.pipeline.presets import Material, own_values
from semimetric.training import TrainingSettings, selectable

SCRATCH_SIDE = {"cpu": 32, "cuda": 64}
"""Pixels to which photographs are brought for a network that starts from nothing."""

SMALLEST_FOR_RESIDUAL, SMALLEST_FOR_CONVOLUTIONS = 16, 8
FEWEST_STEPS = 8
"""Steps of the optimiser in an epoch, at least, on images: a pass over a few hundred is one or two."""


@dataclass(frozen=True)
class Choice:
    """A network and what comes before it; ``why`` is a sentence for people, where there is something to say.

    ``encoder`` is a name, a module, or "none" for a metric on the vectors themselves. ``backbone`` names the pretrained
    network, kept as it is, whose descriptors the encoder sees.
    """

    encoder: str | nn.Module
    preprocess: PreprocessName
    side: int = 0
    backbone: str = ""
    weights: Path | None = None
    why: str = ""

    def material(self, kind: Kind) -> Material:
        """What the encoder sees of examples of a kind, and whether it knows such things already."""
        if self.backbone:
            return "descriptors"
        if self.weights is not None:
            return "pretrained"
        return "vectors" if kind == "vectors" else "images"

    def sight(self, seed: int) -> Sight | None:
        """How photographs are seen; none where there are none."""
        if not self.side:
            return None
        network = None
        if self.backbone:
            network = build_encoder(self.backbone, (3, self.side, self.side), seed, weights=self.weights)
        return Sight(self.side, network=network)


@dataclass(frozen=True)
class Wishes:
    """What the user says about the network; "auto", none and 0 leave it to the data."""

    encoder: str | nn.Module = "auto"
    weights: Path | None = None
    fine_tune: bool = False
    side: int = 0
    preprocess: PreprocessName | Literal["auto"] = "auto"


def choose(kind: Kind, shape: tuple[int, ...], method: str, wishes: Wishes, device: torch.device) -> Choice:
    """The network for examples of a kind and shape; wishes that the data or the network has no use for are refused."""
    check_choice(method, method_names(), "method")
    if wishes.side and kind != "photographs":
        raise InputError(
            f"side is for photographs, which are brought to it, got {wishes.side} for {kind}. Leave it out."
        )
    choice = _choose(kind, shape, method, wishes, device)
    return choice if wishes.preprocess == "auto" else _scaled(choice, wishes.preprocess)


def _scaled(choice: Choice, preprocess: PreprocessName) -> Choice:
    """The choice with inputs scaled as the user wishes; a pretrained network has them its own way."""
    if preprocess != choice.preprocess and (choice.backbone or choice.weights is not None):
        raise InputError(
            f"preprocess is for networks that start from nothing, got {preprocess!r}; "
            f"{choice.backbone or choice.encoder} sees photographs as it was trained to. Leave it out."
        )
    return dataclasses.replace(choice, preprocess=preprocess)


def _choose(kind: Kind, shape: tuple[int, ...], method: str, wishes: Wishes, device: torch.device) -> Choice:
    if isinstance(wishes.encoder, nn.Module):
        _refuse_weights(wishes, "a module of your own")
        side = wishes.side or PRETRAINED_SIDE if kind == "photographs" else 0
        return Choice(wishes.encoder, "imagenet" if kind == "photographs" else "standardize", side)
    if kind == "vectors":
        return _for_vectors(method, wishes)
    if wishes.encoder != "auto" or wishes.weights is not None:
        return _asked_for(kind, shape, wishes, device)
    if kind == "photographs":
        return _for_photographs(wishes, device)
    _refuse_weights(wishes, "a network that starts from nothing")
    return Choice(_for_images(min(shape[1:]), device), "standardize", why=_slow_network(min(shape[1:]), device))


def _for_vectors(method: str, wishes: Wishes) -> Choice:
    _refuse_weights(wishes, "vectors")
    if wishes.encoder != "auto":
        assert isinstance(wishes.encoder, str)
        check_choice(wishes.encoder, ("auto", "none", *encoder_names()), "encoder")
        return Choice(wishes.encoder, "standardize")
    return Choice("none" if METHODS[method].learns_without_network else "mlp", "standardize")


def _asked_for(kind: Kind, shape: tuple[int, ...], wishes: Wishes, device: torch.device) -> Choice:
    """The network that the user names, or that their file of weights is of."""
    assert isinstance(wishes.encoder, str)
    name = wishes.encoder
    if name == "auto":
        assert wishes.weights is not None
        name = weights_name(wishes.weights)
    if not takes_photographs(name):
        check_choice(name, ("auto", *encoder_names(), *(f"{library}:NAME" for library in LIBRARIES)), "encoder")
        _refuse_weights(wishes, f"encoder {name!r}")
        return Choice(name, "standardize", wishes.side or SCRATCH_SIDE[device.type] if kind == "photographs" else 0)
    if wishes.weights is None:
        raise InputError(
            f"encoder {name!r} is a pretrained network and weights names no file. Give the file with its weights; for "
            "a network that starts from nothing use 'resnet9' or 'small-cnn'."
        )
    side = (wishes.side or PRETRAINED_SIDE) if kind == "photographs" else min(shape[1:])
    if wishes.fine_tune:
        return Choice(name, "imagenet", side, weights=wishes.weights)
    return Choice("linear", "none", side, name, wishes.weights)


def _for_photographs(wishes: Wishes, device: torch.device) -> Choice:
    """A pretrained network that is on this machine, or one that starts from nothing."""
    found = installed_encoder()
    if found is None:
        return _from_nothing(wishes, device)
    name, weights = found
    side = wishes.side or PRETRAINED_SIDE
    if wishes.fine_tune:
        return Choice(name, "imagenet", side, weights=weights, why=f"{name} from {weights} is trained on.")
    return Choice("linear", "none", side, name, weights, f"{name} from {weights} describes the photographs.")


def _from_nothing(wishes: Wishes, device: torch.device) -> Choice:
    _refuse_weights(wishes, "a network that starts from nothing, and there is no other on this machine")
    side = wishes.side or SCRATCH_SIDE[device.type]
    why = (
        f"no pretrained network is on this machine, so a small one starts from nothing, on images of {side} x {side} "
        "pixels; with --weights FILE of a pretrained network (GoogLeNet, or one of timm, torchvision or transformers "
        "that --encoder names) the embedding would be much better."
    )
    return Choice(_for_images(side, device), "standardize", side, why=why)


def _for_images(side: int, device: torch.device) -> str:
    if side < SMALLEST_FOR_CONVOLUTIONS:
        return "mlp"
    return "resnet9" if side >= SMALLEST_FOR_RESIDUAL and device.type != "cpu" else "small-cnn"


def _slow_network(side: int, device: torch.device) -> str:
    if device.type == "cpu" and side >= SMALLEST_FOR_RESIDUAL:
        return "there is no GPU, so a small network is trained; --encoder resnet9 is better and many times slower."
    return ""


def _refuse_weights(wishes: Wishes, what: str) -> None:
    if wishes.weights is not None or wishes.fine_tune:
        given = "fine_tune" if wishes.weights is None else f"weights {str(wishes.weights)!r}"
        raise InputError(f"{given} is for pretrained networks of photographs, not for {what}. Leave it out.")


def settings_for(
    method: str, material: Material, labels: Tensor, changes: dict[str, Any], linear: bool = False
) -> tuple[Any, TrainingSettings]:
    """The method's settings and the training's for what is seen, with these labels (N,), with ``changes``.

    Defaults that the data does not allow give way: as many neighbours as there are examples, a model that is chosen on
    labels where no class has two.
    """
    own = {field.name for field in dataclasses.fields(METHODS[method].Settings)}
    training = {field.name for field in dataclasses.fields(TrainingSettings)}
    for name in changes:
        if name not in own | training:
            raise InputError(f"method {method!r} has no setting {name!r}; it has: {', '.join(sorted(own | training))}.")
    values = own_values(method, material)
    values = {name: value for name, value in values.items() if not linear or name in own}
    values |= _that_fit(method, values, len(labels))
    built = build_settings(TrainingSettings, {n: v for n, v in (values | changes).items() if n in training}, "training")
    if "selection" not in changes and built.selection == "labels" and not selectable(labels):
        built = dataclasses.replace(built, selection="last")
    if material != "vectors" and "passes" not in changes:
        steps = built.passes * max(1, len(labels) // built.batch_size)
        built = dataclasses.replace(built, passes=built.passes * max(1, ceil(FEWEST_STEPS / steps)))
    settings = build_settings(
        METHODS[method].Settings, {n: v for n, v in (values | changes).items() if n in own}, f"method {method!r}"
    )
    return settings, built


def _that_fit(method: str, values: dict[str, Any], examples: int) -> dict[str, Any]:
    """As many neighbours as a small set of examples has."""
    default = values.get("k", getattr(METHODS[method].Settings(), "k", 0))
    return {"k": max(1, min(default, examples - 1))} if default else {}
