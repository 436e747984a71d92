"""Pretrained networks that are already on this machine: in the caches of libraries, and in installed packages."""

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

from semimetric.encoders.packages import packaged_path, packaged_weights
from semimetric.encoders.registry import pretrained_specs
from semimetric.encoders.spec import PHOTO_SIDE

PREFERRED = ("dinov3", "dinov2", "convnext", "efficientnet", "regnet", "resnet50", "resnet", "googlenet")
"""Families known for good descriptors, the best first; a network of no such family must be named."""

_ANY_SIZE = ("dinov3_vit", "dinov3_convnext", "dinov2", "dinov2_with_registers", "convnext", "resnet", "regnet")
"""Models of transformers, as their config calls them, that describe images of any size."""
_CHECKPOINT, _REPOSITORY = re.compile(r"([a-z0-9_]+)-[0-9a-f]{8}\.pth"), re.compile(r"models--(.+?)--(.+)")


def installed_encoder() -> tuple[str, Path] | None:
    """Name and weights of the best pretrained network on this machine; None if there is none. Nothing is downloaded.

    Within a family the caches of torchvision, timm and transformers come first, then packages of weights, of which the
    largest network is the best. Weights of a package that are not as published are refused.
    """
    cached = sorted((*_of_torchvision(), *_of_hub()), key=lambda pair: pair[0])
    packaged = list(_of_packages())
    found = [pair for pair in (*cached, *packaged) if _rank(pair[0]) < len(PREFERRED)]
    best = min(found, key=lambda pair: _rank(pair[0]), default=None)
    return (best[0], packaged_weights(best[0])) if best in packaged else best


def _rank(name: str) -> int:
    return next((rank for rank, part in enumerate(PREFERRED) if part in name), len(PREFERRED))


def _has(library: str) -> bool:
    return importlib.util.find_spec(library) is not None


def _of_packages() -> Iterator[tuple[str, Path]]:
    """Installed packages of weights; of a family the last in the table of encoders, which is the largest, first."""
    for spec in reversed(pretrained_specs()):
        path = None if spec.package is None else packaged_path(spec.package)
        if path is not None:
            yield spec.name, path


def _of_torchvision() -> Iterator[tuple[str, Path]]:
    """Checkpoints that torchvision has fetched; those of an encoder here, such as googlenet, need no torchvision."""
    own = {spec.checkpoint: spec.name for spec in pretrained_specs() if spec.checkpoint}
    for path in sorted((Path(torch.hub.get_dir()) / "checkpoints").glob("*.pth")):
        match = _CHECKPOINT.fullmatch(path.name)
        if match is None or not path.is_file():
            continue
        if match[1] in own:
            yield own[match[1]], path
        elif _has("torchvision"):
            models = importlib.import_module("torchvision").models
            if match[1] in models.list_models(module=models):
                yield f"torchvision:{match[1]}", path


def _of_hub() -> Iterator[tuple[str, Path]]:
    """Whole snapshots that timm and transformers have fetched from the hub."""
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
    main = repository / "refs/main"
    current = main.read_text(encoding="utf-8").strip() if main.is_file() else ""
    return sorted((repository / "snapshots").glob("*"), key=lambda folder: (folder.name != current, folder.name))


def _read_snapshot(folder: Path) -> tuple[dict[str, Any], Path] | None:
    """The config and the weights file of a snapshot; None if one of them is missing or damaged."""
    weights = folder / "model.safetensors"
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        with safe_open(weights, framework="pt"):
            return (config, weights) if isinstance(config, dict) else None
    except (OSError, ValueError, SafetensorError):
        return None


def _timm_takes_side(config: dict[str, Any]) -> bool:
    """Whether it is a model of timm that takes images of ``PHOTO_SIDE``; some take one size only."""
    known = config.get("pretrained_cfg") or {}
    fits = not known.get("fixed_input_size") or known.get("input_size") == [3, PHOTO_SIDE, PHOTO_SIDE]
    return fits and "architecture" in config
