"""What comes from elsewhere: files of weights, and the networks of timm, torchvision and transformers."""

from __future__ import annotations

import importlib
import json
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from semimetric.core.errors import InputError, RunError
from semimetric.encoders.inputs import IMAGENET_MEAN, IMAGENET_STD, conversion

_EXTRAS = {"timm": "vision", "torchvision": "vision", "transformers": "transformers"}
LIBRARIES = tuple(_EXTRAS)
"""Prefixes of encoder names such as ``timm:resnet50``, and the extra that brings each library."""

_HEADS = ("fc", "classifier", "heads", "head")
_AUXILIARY_HEADS = {"googlenet": ("aux1.", "aux2."), "inception_v3": ("AuxLogits.",)}
_POOLS = (nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d, nn.AvgPool2d, nn.MaxPool2d, nn.Flatten)
_SNAPSHOT_WEIGHTS, _SNAPSHOT_CONFIG, _SNAPSHOT_INPUTS = "model.safetensors", "config.json", "preprocessor_config.json"
_POOLER = "pooler"
_DESCRIPTION = "network.description"
_UNREADABLE = (OSError, EOFError, ValueError, RuntimeError, pickle.UnpicklingError, zipfile.BadZipFile, SafetensorError)


class Headless(nn.Module):
    """A network without its classifier, as an encoder: (N, ...) -> (N, d).

    With ``statistics``, a mean and a deviation of each channel, images that come normalised by those of ImageNet reach
    the network normalised by these instead.
    """

    scale: Tensor | None
    shift: Tensor | None

    def __init__(self, network: nn.Module, statistics: tuple[Sequence[float], Sequence[float]] | None = None) -> None:
        super().__init__()
        self.network = network
        scale, shift = (None, None) if statistics is None else conversion(*statistics)
        self.register_buffer("scale", scale, persistent=False)
        self.register_buffer("shift", shift, persistent=False)

    def forward(self, inputs: Tensor) -> Tensor:
        """One row for each input; maps (N, d, h, w) and tokens (N, t, d) are averaged over their positions."""
        if self.scale is not None and self.shift is not None:
            inputs = inputs * self.scale + self.shift
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
    cutting the last linear layer or convolution, and the dropout before it, out of ``fc``, ``classifier``, ``heads``
    or ``head``, as torchvision names it. A module with none of these is used as it is. Inputs reach the model as they
    come, so normalise them as it was trained.
    """
    _take_classifier_off(model)
    return Headless(model)


def _take_classifier_off(model: nn.Module) -> None:
    reset = getattr(model, "reset_classifier", None)
    if callable(reset):
        reset(0)
        return
    name = next((name for name in _HEADS if isinstance(getattr(model, name, None), nn.Module)), None)
    if name is not None:
        setattr(model, name, _without_last_layer(getattr(model, name)))


def _without_last_layer(head: nn.Module) -> nn.Module:
    """What stands before the last linear layer of a head; nothing where the head is that layer or has none.

    Where the last layer is a convolution (SqueezeNet), pooling that follows it stays: the network counts on it.
    """
    if not isinstance(head, nn.Sequential):
        return nn.Identity()
    last = max((i for i, layer in enumerate(head) if isinstance(layer, nn.Linear | nn.Conv2d)), default=0)
    kept = last
    while kept and isinstance(head[kept - 1], nn.Dropout):
        kept -= 1
    layers = list(head.named_children())
    pools = layers[last + 1 :] if isinstance(head[last], nn.Conv2d) else []
    return nn.Sequential(OrderedDict(layers[:kept] + [layer for layer in pools if isinstance(layer[1], _POOLS)]))


def library_encoder(name: str, weights: Path | str | None = None) -> nn.Module:
    """The encoder ``timm:NAME``, ``torchvision:NAME`` or ``transformers:ORG/NAME``; nothing is downloaded.

    Of timm and torchvision it starts from the library's random numbers, or from ``weights``, a file with a
    ``state_dict`` of that model, of which the classifier and auxiliary heads are passed over. Of transformers it is the
    model of a snapshot folder, in which ``weights`` is the model.safetensors. Images come normalised by the statistics
    of ImageNet; a model of timm or transformers that was trained on others gets them by these.
    """
    library, _, model_name = name.partition(":")
    module = _import(library, name)
    if library == "transformers":
        return _from_snapshot(module, name, weights)
    network = _timm_model(module, model_name) if library == "timm" else _torchvision_model(module, model_name)
    whole = set(network.state_dict())
    _take_classifier_off(network)
    if weights is not None:
        cut_off = (*(whole - set(network.state_dict())), *_AUXILIARY_HEADS.get(model_name, ()))
        load_tensors(network, read_weights(weights), weights, cut_off)
    return Headless(network, _own_statistics(network) if library == "timm" else None)


def _own_statistics(model: nn.Module) -> tuple[Sequence[float], Sequence[float]] | None:
    """Mean and deviation of red, green and blue that a model of timm was trained on, if they are not ImageNet's."""
    found = getattr(model, "pretrained_cfg", None)
    known = found if isinstance(found, Mapping) else {}
    return _unless_imagenet(known.get("mean"), known.get("std"))


def _unless_imagenet(mean: Any, std: Any) -> tuple[Sequence[float], Sequence[float]] | None:
    statistics = tuple(mean or IMAGENET_MEAN), tuple(std or IMAGENET_STD)
    return None if statistics == (IMAGENET_MEAN, IMAGENET_STD) else statistics


def _import(library: str, name: str) -> ModuleType:
    try:
        return importlib.import_module(library)
    except ImportError as error:
        raise InputError(
            f"encoder {name!r} needs the package {library}, which cannot be imported here ({error}). "
            f"Install it with: pip install 'semimetric[{_EXTRAS[library]}]'."
        ) from error


class Described(nn.Module):
    """A model of transformers with one output, which carries in its state what it takes to build it again.

    That is ``description`` (n,), the bytes of a JSON text: its config, the statistics of its inputs and the version of
    transformers. A run that holds the state needs no snapshot to have the model back, and nothing in it is code.
    """

    description: Tensor

    def __init__(self, model: nn.Module, description: dict[str, Any]) -> None:
        super().__init__()
        self.model = model
        text = json.dumps(description).encode()
        self.register_buffer("description", torch.tensor(list(text), dtype=torch.uint8))

    def forward(self, images: Tensor) -> Any:
        """The pooled output (N, d) where the model has one, else the last hidden state, which may be tokens or maps."""
        try:
            output = self.model(pixel_values=images)
        except ValueError as error:
            raise InputError(
                f"the network cannot take images of shape {tuple(images.shape[1:])}: {error} Bring photographs to the "
                "side that it was trained on."
            ) from error
        pooled = getattr(output, "pooler_output", None)
        return getattr(output, "last_hidden_state", None) if pooled is None else pooled


def _from_snapshot(transformers: ModuleType, name: str, weights: Path | str | None) -> nn.Module:
    """The model of a snapshot folder, loaded by transformers itself, which knows the names of older files.

    What the file has no tensors for would be random: a pooler, as files of classifiers lack it, is taken off, and
    anything else is refused.
    """
    path = _snapshot_file(name, weights)
    config, inputs = _json_beside(path, _SNAPSHOT_CONFIG), _json_beside(path, _SNAPSHOT_INPUTS)
    try:
        model, loaded = transformers.AutoModel.from_pretrained(
            str(path.parent),
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            output_loading_info=True,
        )
    except (*_UNREADABLE, ImportError, KeyError) as error:
        raise InputError(f"the snapshot {path.parent} cannot be loaded by transformers: {error}") from error
    missing = sorted(key for key in loaded["missing_keys"] if _POOLER not in key.split("."))
    if missing:
        raise InputError(
            f"the weights in {path} lack {len(missing)} of the network's tensors, first {missing[0]!r}. Fetch the "
            "snapshot again."
        )
    description = {
        "config": config,
        "mean": inputs.get("image_mean"),
        "std": inputs.get("image_std"),
        "transformers": str(transformers.__version__),
    }
    encoder = _described(name, model, description, set(model.state_dict()) - set(loaded["missing_keys"]))
    _check_tensors(encoder.state_dict(), path)
    return encoder


def rebuild_described(name: str, tensors: Mapping[str, Tensor]) -> nn.Module:
    """The encoder ``transformers:ORG/NAME`` whose ``state_dict`` the tensors are, without its snapshot."""
    transformers = _import("transformers", name)
    description = json.loads(bytes(tensors[_DESCRIPTION].tolist()))
    config = description["config"]
    known = {key.removeprefix("network.model.") for key in tensors}
    try:
        built = transformers.AutoConfig.for_model(config["model_type"]).from_dict(config)
        model = transformers.AutoModel.from_config(built, trust_remote_code=False)
        encoder = _described(name, model, description, known)
        encoder.load_state_dict(tensors)
    except (ValueError, RuntimeError) as error:
        raise RunError(
            f"{name!r} was stored by transformers {description['transformers']}, and transformers "
            f"{transformers.__version__} cannot build it again: {' '.join(str(error).split())}"
        ) from error
    return encoder


def _described(name: str, model: nn.Module, description: dict[str, Any], known: set[str]) -> nn.Module:
    """A model of images with its description; a pooler whose tensors are not among the known ones is taken off."""
    if getattr(model, "main_input_name", None) != "pixel_values":
        raise InputError(f"encoder {name!r} is not a network of images alone. Use one such as facebook/dinov2-base.")
    if any(key.startswith(f"{_POOLER}.") and key not in known for key in model.state_dict()):
        setattr(model, _POOLER, None)
    statistics = _unless_imagenet(description["mean"], description["std"])
    return Headless(Described(model.float(), description), statistics)


def _snapshot_file(name: str, weights: Path | str | None) -> Path:
    path = Path(weights) if weights is not None else None
    if path is None or path.name != _SNAPSHOT_WEIGHTS or not path.is_file():
        got = "none" if path is None else str(path)
        raise InputError(
            f"encoder {name!r} needs as weights the file {_SNAPSHOT_WEIGHTS} in its snapshot folder, beside "
            f"{_SNAPSHOT_CONFIG}, got {got}. Fetch it with: hf download {name.partition(':')[2]}."
        )
    return path


def _json_beside(path: Path, name: str) -> dict[str, Any]:
    """A JSON file of the snapshot; one that is not there says nothing."""
    beside = path.parent / name
    try:
        found = json.loads(beside.read_text(encoding="utf-8")) if beside.is_file() else {}
    except (OSError, ValueError) as error:
        raise InputError(f"{beside} cannot be read: {error}. Fetch the snapshot again.") from error
    return found if isinstance(found, dict) else {}


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
    given = extra if name in _AUXILIARY_HEADS else {}
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
    if not zipfile.is_zipfile(path):
        raise ValueError("it is no archive of arrays")
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


def load_tensors(
    network: nn.Module, tensors: Mapping[str, Tensor], source: Path | str, cut_off: tuple[str, ...] = ()
) -> None:
    """Copy ``tensors`` into ``network``, which must find all of its own among them, in their shapes.

    What else there is must begin with one of the names ``cut_off``, as that of a classifier which the network has not;
    other tensors are those of another network.
    """
    try:
        missing, beyond = network.load_state_dict(tensors, strict=False)
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
    unknown = [name for name in beyond if not name.startswith(cut_off)]
    if unknown:
        raise InputError(
            f"the weights in {source} have {len(unknown)} tensors that the network has not, first {unknown[0]!r}. "
            "They are of another network, perhaps a deeper one of its family; use weights of the same network."
        )
