"""Models of transformers as encoders, such as ``transformers:facebook/dinov2-base``, from a snapshot folder."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from semimetric.core.errors import InputError, RunError
from semimetric.encoders.headless import Headless, import_library, unless_imagenet
from semimetric.encoders.spec import EncoderSpec
from semimetric.encoders.weights import UNREADABLE, check_tensors

_WEIGHTS, _CONFIG, _INPUTS = "model.safetensors", "config.json", "preprocessor_config.json"
_POOLER = "pooler"


def transformers_spec(name: str) -> EncoderSpec:
    """The encoder ``transformers:ORG/NAME``, whose weights are the model.safetensors in its snapshot folder."""
    load, rebuild = partial(_from_snapshot, name), partial(_rebuild, name)
    return EncoderSpec(name=name, build=lambda shape, init: load(None), load=load, rebuild=rebuild, smallest=64)


class Described(nn.Module):
    """A model of transformers with one output, and in its ``state_dict``, as JSON, how to build it again."""

    description: Tensor

    def __init__(self, model: nn.Module, description: dict[str, Any]) -> None:
        super().__init__()
        self.model = model
        self.register_buffer("description", torch.tensor(list(json.dumps(description).encode()), dtype=torch.uint8))

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


def _from_snapshot(name: str, path: Path | None) -> nn.Module:
    """The model of a snapshot folder; a pooler without tensors in the file is removed, any other such part refused."""
    transformers = import_library("transformers", "transformers", name)
    if path is None or path.name != _WEIGHTS or not path.is_file():
        raise InputError(
            f"encoder {name!r} needs as weights the file {_WEIGHTS} in its snapshot folder, beside "
            f"{_CONFIG}, got {path or 'none'}. Fetch it with: hf download {name.partition(':')[2]}."
        )
    config, inputs = _json_beside(path, _CONFIG), _json_beside(path, _INPUTS)
    options = {"local_files_only": True, "trust_remote_code": False, "use_safetensors": True}
    try:
        with _without_bars(transformers):
            folder = str(path.parent)
            model, loaded = transformers.AutoModel.from_pretrained(folder, output_loading_info=True, **options)
    except (*UNREADABLE, ImportError, KeyError) as error:
        raise InputError(f"the snapshot {path.parent} cannot be loaded by transformers: {error}") from error
    missing = sorted(key for key in loaded["missing_keys"] if _POOLER not in key.split("."))
    if missing:
        raise InputError(
            f"the weights in {path} lack {len(missing)} of the network's tensors, first {missing[0]!r}. Fetch the "
            "snapshot again."
        )
    description = {"config": config, "mean": inputs.get("image_mean"), "std": inputs.get("image_std")}
    description["transformers"] = str(transformers.__version__)
    encoder = _described(name, model, description, set(model.state_dict()) - set(loaded["missing_keys"]))
    check_tensors(encoder.state_dict(), path)
    return encoder


@contextmanager
def _without_bars(transformers: Any) -> Iterator[None]:
    """Without the library's own progress bars, which it also draws where standard error is no terminal."""
    logging = transformers.utils.logging
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _rebuild(name: str, tensors: Mapping[str, Tensor]) -> nn.Module:
    """The encoder with the tensors of its ``state_dict``, without its snapshot."""
    transformers = import_library("transformers", "transformers", name)
    description = json.loads(bytes(tensors["network.description"].tolist()))
    config = description["config"]
    try:
        built = transformers.AutoConfig.for_model(config["model_type"]).from_dict(config)
        model = transformers.AutoModel.from_config(built, trust_remote_code=False)
        encoder = _described(name, model, description, {key.removeprefix("network.model.") for key in tensors})
        encoder.load_state_dict(tensors)
    except (ValueError, RuntimeError) as error:
        raise RunError(
            f"{name!r} was stored by transformers {description['transformers']}, and transformers "
            f"{transformers.__version__} cannot build it again: {' '.join(str(error).split())}"
        ) from error
    return encoder


def _described(name: str, model: nn.Module, description: dict[str, Any], known: set[str]) -> nn.Module:
    """A model of images with its description; a pooler whose tensors are not among ``known`` is removed."""
    if getattr(model, "main_input_name", None) != "pixel_values":
        raise InputError(f"encoder {name!r} is not a network of images alone. Use one such as facebook/dinov2-base.")
    if any(key.startswith(f"{_POOLER}.") and key not in known for key in model.state_dict()):
        setattr(model, _POOLER, None)
    return Headless(Described(model.float(), description), unless_imagenet(description["mean"], description["std"]))


def _json_beside(path: Path, name: str) -> dict[str, Any]:
    """A JSON file of the snapshot; empty if there is none."""
    beside = path.parent / name
    try:
        found = json.loads(beside.read_text(encoding="utf-8")) if beside.is_file() else {}
    except (OSError, ValueError) as error:
        raise InputError(f"{beside} cannot be read: {error}. Fetch the snapshot again.") from error
    return found if isinstance(found, dict) else {}
