"""What comes from elsewhere: files of weights, and the networks of timm and torchvision."""

from __future__ import annotations

import importlib
import pickle
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from semimetric.errors import InputError

LIBRARIES = ("timm", "torchvision")
"""Prefixes of encoder names such as ``timm:resnet50``."""

_HEADS = ("fc", "classifier", "heads", "head")
_WITH_AUXILIARY_HEADS = ("googlenet", "inception_v3")
_UNREADABLE = (OSError, EOFError, ValueError, RuntimeError, pickle.UnpicklingError, zipfile.BadZipFile, SafetensorError)


class Headless(nn.Module):
    """A network without its classifier, as an encoder: (N, ...) -> (N, d)."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, inputs: Tensor) -> Tensor:
        """One row for each input; maps (N, d, h, w) and tokens (N, t, d) are averaged over their positions."""
        output = self.network(inputs)
        if not isinstance(output, Tensor) or output.ndim not in (2, 3, 4):
            got = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
            raise InputError(
                f"the wrapped network must return rows (N, d), tokens (N, t, d) or maps (N, d, h, w), got {got}. "
                "Wrap a network with one output."
            )
        if output.ndim == 4:
            return output.mean((2, 3))
        return output.mean(1) if output.ndim == 3 else output


def wrap(model: nn.Module) -> nn.Module:
    """Any classifier of timm or torchvision, or any module, as an encoder (N, ...) -> (N, d).

    The classifier is taken off ``model`` itself: by ``reset_classifier(0)``, as every timm model has it, or else by
    cutting the last linear layer, and the dropout before it, out of ``fc``, ``classifier``, ``heads`` or ``head``, as
    torchvision names it. A module with none of these is used as it is.
    """
    reset = getattr(model, "reset_classifier", None)
    if callable(reset):
        reset(0)
        return Headless(model)
    name = next((name for name in _HEADS if isinstance(getattr(model, name, None), nn.Module)), None)
    if name is not None:
        setattr(model, name, _without_last_layer(getattr(model, name)))
    return Headless(model)


def _without_last_layer(head: nn.Module) -> nn.Module:
    """What stands before the last linear layer of a head; nothing where the head is that layer or has none."""
    if not isinstance(head, nn.Sequential):
        return nn.Identity()
    kept = max((i for i, layer in enumerate(head) if isinstance(layer, nn.Linear)), default=0)
    while kept and isinstance(head[kept - 1], nn.Dropout):
        kept -= 1
    return head[:kept]


def library_encoder(name: str, weights: Path | str | None = None) -> nn.Module:
    """The encoder ``timm:NAME`` or ``torchvision:NAME``; nothing is downloaded.

    It starts from the library's random numbers, or from ``weights``, a file with a ``state_dict`` of that model.
    What such a file holds beyond the encoder, as a classifier, is passed over.
    """
    library, _, model_name = name.partition(":")
    module = _import(library, name)
    network = _timm_model(module, model_name) if library == "timm" else _torchvision_model(module, model_name)
    encoder = wrap(network)
    if weights is not None:
        load_tensors(network, read_weights(weights), weights)
    return encoder


def _import(library: str, name: str) -> ModuleType:
    try:
        return importlib.import_module(library)
    except ImportError as error:
        raise InputError(
            f"encoder {name!r} needs the package {library}, which cannot be imported here ({error}). "
            "Install it with: pip install 'semimetric[vision]'."
        ) from error


def _timm_model(timm: ModuleType, name: str) -> nn.Module:
    if not timm.is_model(name):
        raise InputError(f"encoder 'timm:{name}' is not a model of timm. timm.list_models() lists them.")
    model: nn.Module = timm.create_model(name, pretrained=False)
    return model


def _torchvision_model(torchvision: ModuleType, name: str) -> nn.Module:
    """A classifier of torchvision; the two with auxiliary heads do without, and rescale their input as trained."""
    if name not in torchvision.models.list_models(module=torchvision.models):
        raise InputError(
            f"encoder 'torchvision:{name}' is not a classifier of torchvision. "
            "torchvision.models.list_models(module=torchvision.models) lists them."
        )
    extra = {"aux_logits": False, "init_weights": True, "transform_input": True}
    given = extra if name in _WITH_AUXILIARY_HEADS else {}
    model: nn.Module = torchvision.models.get_model(name, weights=None, **given)
    return model


def read_weights(path: Path | str) -> dict[str, Tensor]:
    """Tensors by name from a file: .npz, .safetensors, or a ``state_dict`` in .pth or .pt; nothing is unpickled."""
    path = Path(path)
    if path.suffix not in _READERS:
        raise InputError(f"weights must be a file that ends in {', '.join(_READERS)}, got {path}.")
    if not path.is_file():
        raise InputError(f"weights names the file {path}, which is not there. Give the path of a file with weights.")
    try:
        tensors: dict[str, Tensor] = _READERS[path.suffix](path)
    except _UNREADABLE as error:
        raise InputError(
            f"the weights in {path} cannot be read: {error}. "
            "The file is damaged, or holds more than tensors; save a state_dict, or fetch it again."
        ) from error
    _check_tensors(tensors, path)
    return tensors


def _read_npz(path: Path) -> dict[str, Tensor]:
    with np.load(path, allow_pickle=False) as arrays:
        return {name: torch.from_numpy(arrays[name]) for name in arrays.files}


def _read_torch(path: Path) -> Any:
    return torch.load(path, map_location="cpu", weights_only=True)


_READERS: dict[str, Callable[[Path], Any]] = {
    ".npz": _read_npz,
    ".safetensors": load_file,
    ".pth": _read_torch,
    ".pt": _read_torch,
}


def _check_tensors(tensors: object, path: Path) -> None:
    if not isinstance(tensors, dict) or not all(isinstance(value, Tensor) for value in tensors.values()):
        raise InputError(
            f"the weights in {path} must be tensors by name, that is a state_dict, got {type(tensors).__name__} "
            "with other things in it. Save model.state_dict() alone."
        )
    broken = [name for name, value in tensors.items() if not bool(torch.isfinite(value).all())]
    if broken:
        raise InputError(
            f"the weights in {path} have NaN or infinite values, first in {broken[0]!r}. Use an undamaged file."
        )


def load_tensors(network: nn.Module, tensors: Mapping[str, Tensor], source: Path | str) -> None:
    """Copy ``tensors`` into ``network``, which must find all of its own among them, in their shapes."""
    try:
        missing = network.load_state_dict(tensors, strict=False).missing_keys
    except RuntimeError as error:
        mismatch = " ".join(str(error).split()).rstrip(".")
        raise InputError(
            f"the weights in {source} do not fit the network: {mismatch}. Use weights of the same network."
        ) from error
    if missing:
        raise InputError(
            f"the weights in {source} lack {len(missing)} of the network's tensors, first {missing[0]!r}. "
            "Use weights of the same network."
        )
