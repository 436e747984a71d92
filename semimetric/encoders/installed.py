"""Pretrained networks that are on this machine already: in the caches of torchvision, timm and transformers."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from semimetric.core.errors import InputError
from semimetric.encoders.adapters import read_weights
from semimetric.encoders.googlenet import is_googlenet

PREFERRED = ("dinov3", "dinov2", "convnext", "efficientnet", "regnet", "resnet50", "resnet", "googlenet")
"""Families known for good descriptors, the best first; a network of none of them is not taken unasked."""

SIDE = 224
"""Pixels to which photographs are brought for a pretrained network, unless asked otherwise."""

_ANY_SIZE = ("dinov3_vit", "dinov3_convnext", "dinov2", "dinov2_with_registers", "convnext", "resnet", "regnet")
"""Models of transformers, as their config calls them, that describe images of any size."""

_CHECKPOINT = re.compile(r"([a-z0-9_]+)-[0-9a-f]{8}\.pth")
_REPOSITORY = re.compile(r"models--(.+?)--(.+)")


def installed_encoder() -> tuple[str, Path] | None:
    """Name and weights of the best pretrained network that is here; none where there is none. Nothing is downloaded."""
    found = [pair for pair in (*_of_torchvision(), *_of_hub()) if _rank(pair[0]) < len(PREFERRED)]
    return min(found, key=lambda pair: (_rank(pair[0]), pair[0]), default=None)


def weights_name(path: Path) -> str:
    """The encoder that a file of weights is of, where its names tell."""
    if is_googlenet(read_weights(path)):
        return "googlenet"
    raise InputError(
        f"the weights in {path} are not GoogLeNet's, and of which network they are cannot be told. Name it as encoder, "
        "such as timm:resnet50 or torchvision:resnet50."
    )


def _rank(name: str) -> int:
    return next((rank for rank, part in enumerate(PREFERRED) if part in name), len(PREFERRED))


def _has(library: str) -> bool:
    return importlib.util.find_spec(library) is not None


def _of_torchvision() -> Iterator[tuple[str, Path]]:
    """Checkpoints of classifiers that torchvision has fetched; GoogLeNet's need no torchvision."""
    matches = [
        (match[1], path)
        for path in sorted((Path(torch.hub.get_dir()) / "checkpoints").glob("*.pth"))
        if (match := _CHECKPOINT.fullmatch(path.name)) and path.is_file()
    ]
    known = _classifiers_of_torchvision() if any(name != "googlenet" for name, _ in matches) else set()
    for name, path in matches:
        if name == "googlenet":
            yield name, path
        elif name in known:
            yield f"torchvision:{name}", path


def _classifiers_of_torchvision() -> set[str]:
    if not _has("torchvision"):
        return set()
    models = importlib.import_module("torchvision").models
    return set(models.list_models(module=models))


def _of_hub() -> Iterator[tuple[str, Path]]:
    """Snapshots that timm and transformers have fetched from the hub and that are whole."""
    for repository in sorted(_hub().glob("models--*--*")):
        match = _REPOSITORY.fullmatch(repository.name)
        found = next((pair for folder in _snapshots(repository) if (pair := _read_snapshot(folder))), None)
        if match is None or found is None:
            continue
        config, weights = found
        if match[1] == "timm" and _timm_takes_side(config) and _has("timm"):
            yield f"timm:{match[2]}", weights
        elif config.get("model_type") in _ANY_SIZE and _has("transformers"):
            yield f"transformers:{match[1]}/{match[2]}", weights


def _hub() -> Path:
    """The folder in which the hub's own library keeps what it has fetched."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    home = Path(os.environ.get("HF_HOME") or cache / "huggingface")
    return Path(os.environ.get("HF_HUB_CACHE") or home / "hub").expanduser()


def _snapshots(repository: Path) -> list[Path]:
    """Snapshot folders of a repository, the one that is called main first."""
    main = repository / "refs" / "main"
    current = main.read_text(encoding="utf-8").strip() if main.is_file() else ""
    return sorted((repository / "snapshots").glob("*"), key=lambda folder: (folder.name != current, folder.name))


def _read_snapshot(folder: Path) -> tuple[dict[str, Any], Path] | None:
    """The config and the file of weights of a snapshot; none where one of them is not there or is not whole."""
    weights = folder / "model.safetensors"
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        with safe_open(weights, framework="pt"):
            return (config, weights) if isinstance(config, dict) else None
    except (OSError, ValueError, SafetensorError):
        return None


def _timm_takes_side(config: dict[str, Any]) -> bool:
    """Whether it is a model of timm that takes images of our side; some take those of their own alone."""
    known = config.get("pretrained_cfg") or {}
    return "architecture" in config and (
        not known.get("fixed_input_size") or known.get("input_size") == [3, SIDE, SIDE]
    )
