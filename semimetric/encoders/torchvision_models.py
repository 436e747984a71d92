"""Classifiers of torchvision as encoders, such as ``torchvision:resnet18``; nothing is downloaded."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from semimetric.core.errors import InputError
from semimetric.encoders.headless import Headless, import_library, remove_classifier
from semimetric.encoders.spec import EncoderSpec
from semimetric.encoders.weights import load_tensors, read_weights

_AUXILIARY_HEADS = {"googlenet": ("aux1.", "aux2."), "inception_v3": ("AuxLogits.",)}


def torchvision_spec(name: str) -> EncoderSpec:
    """The encoder ``torchvision:NAME``, random or with a ``state_dict`` of that model, whose heads are ignored."""
    return EncoderSpec(name=name, build=lambda shape, init: _encoder(name), load=lambda path: _encoder(name, path))


def _encoder(name: str, weights: Path | None = None) -> nn.Module:
    """A classifier of torchvision without its head; the two with auxiliary heads rescale their input as trained."""
    models, model = import_library("torchvision", "vision", name).models, name.partition(":")[2]
    if model not in models.list_models(module=models):
        raise InputError(
            f"encoder {name!r} is not a classifier of torchvision. "
            "torchvision.models.list_models(module=torchvision.models) lists them."
        )
    extra = {"aux_logits": False, "init_weights": True, "transform_input": True}
    network: nn.Module = models.get_model(model, weights=None, **(extra if model in _AUXILIARY_HEADS else {}))
    whole = set(network.state_dict())
    remove_classifier(network)
    if weights is not None:
        ignored = (*(whole - set(network.state_dict())), *_AUXILIARY_HEADS.get(model, ()))
        load_tensors(network, read_weights(weights), weights, ignored)
    return Headless(network)
