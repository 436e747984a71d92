"""Models of timm and classifiers of torchvision as encoders, such as ``timm:resnet50``; nothing is downloaded."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from semimetric.core.errors import InputError
from semimetric.encoders.headless import Headless, import_library, remove_classifier, unless_imagenet
from semimetric.encoders.spec import EncoderSpec
from semimetric.encoders.weights import load_tensors, read_weights

_AUXILIARY_HEADS = {"torchvision:googlenet": ("aux1.", "aux2."), "torchvision:inception_v3": ("AuxLogits.",)}
_OLD_DENSENET = re.compile(r"(denselayer\d+\.(?:norm|conv))\.([12]\.)")


def _spec(name: str, create: Callable[[str], nn.Module]) -> EncoderSpec:
    """The encoder ``LIBRARY:NAME``, random or from a ``state_dict`` of that model."""

    def encoder(weights: Path | None = None) -> nn.Module:
        """The model without its classifier; tensors of the classifier and of auxiliary heads are ignored."""
        network = create(name)
        whole = set(network.state_dict())
        remove_classifier(network)
        if weights is not None:
            ignored = (*(whole - set(network.state_dict())), *_AUXILIARY_HEADS.get(name, ()))
            load_tensors(network, _with_new_names(read_weights(weights)), weights, ignored)
        known = getattr(network, "pretrained_cfg", None)  # of timm
        known = known if isinstance(known, Mapping) else {}
        return Headless(network, unless_imagenet(known.get("mean"), known.get("std")))

    return EncoderSpec(name=name, build=lambda shape, init: encoder(), load=encoder, smallest=64)


def _with_new_names(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Tensors of DenseNet, which torchvision publishes as ``norm.1`` and its networks call ``norm1``; others as is."""
    names = {name: _OLD_DENSENET.sub(r"\1\2", name) for name in tensors}
    return tensors if all(old == new for old, new in names.items()) else {names[old]: tensors[old] for old in tensors}


def _load_as_newest(network: nn.Module, tensors: Any, prefix: str, metadata: dict[str, Any], *rest: Any) -> None:
    """In place of ``_load_from_state_dict``: tensors without a version are those of the newest."""
    metadata = {"version": network._version} | metadata
    type(network)._load_from_state_dict(network, tensors, prefix, metadata, *rest)


def _timm_model(name: str) -> nn.Module:
    timm, model_name = import_library("timm", "vision", name), name.partition(":")[2]
    if not timm.is_model(model_name):
        raise InputError(f"encoder {name!r} is not a model of timm. timm.list_models() lists them.")
    model: nn.Module = timm.create_model(model_name, pretrained=False)
    return model


def _torchvision_model(name: str) -> nn.Module:
    """A classifier of torchvision; the two with auxiliary heads do without, and rescale their input as trained."""
    models, model_name = import_library("torchvision", "vision", name).models, name.partition(":")[2]
    if model_name not in models.list_models(module=models):
        raise InputError(
            f"encoder {name!r} is not a classifier of torchvision. "
            "torchvision.models.list_models(module=torchvision.models) lists them."
        )
    extra = {"aux_logits": False, "init_weights": True, "transform_input": True}
    model: nn.Module = models.get_model(model_name, weights=None, **(extra if name in _AUXILIARY_HEADS else {}))
    if type(model).__name__ == "MNASNet":  # refuses tensors without a version, as .safetensors and runs have them
        vars(model)["_load_from_state_dict"] = partial(_load_as_newest, model)
    return model


timm_spec = partial(_spec, create=_timm_model)
torchvision_spec = partial(_spec, create=_torchvision_model)
