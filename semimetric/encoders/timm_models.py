"""Models of timm as encoders, such as ``timm:resnet50``; nothing is downloaded."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch import nn

from semimetric.core.errors import InputError
from semimetric.encoders.headless import Headless, import_library, remove_classifier, unless_imagenet
from semimetric.encoders.spec import EncoderSpec
from semimetric.encoders.weights import load_tensors, read_weights


def timm_spec(name: str) -> EncoderSpec:
    """The encoder ``timm:NAME``, random or with a ``state_dict`` of that model, whose classifier is ignored."""
    return EncoderSpec(name=name, build=lambda shape, init: _encoder(name), load=lambda path: _encoder(name, path))


def _encoder(name: str, weights: Path | None = None) -> nn.Module:
    timm, model = import_library("timm", "vision", name), name.partition(":")[2]
    if not timm.is_model(model):
        raise InputError(f"encoder {name!r} is not a model of timm. timm.list_models() lists them.")
    network: nn.Module = timm.create_model(model, pretrained=False)
    whole = set(network.state_dict())
    remove_classifier(network)
    if weights is not None:
        load_tensors(network, read_weights(weights), weights, tuple(whole - set(network.state_dict())))
    found = getattr(network, "pretrained_cfg", None)
    known = found if isinstance(found, Mapping) else {}
    return Headless(network, unless_imagenet(known.get("mean"), known.get("std")))
