"""Pretrained networks that are on this machine already: in the caches of torchvision, timm and transformers."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Iterator
from pathlib import Path

import torch

from semimetric.encoders.adapters import read_weights
from semimetric.errors import InputError

PREFERRED = ("dinov2", "convnext", "efficientnet", "regnet", "resnet50", "resnet", "googlenet")
"""Of several, the first whose name holds one of these, in this order: what is known for good descriptors first."""

_GOOGLENET = {"conv1/7x7_s2.w", "conv1.conv.weight"}
_CHECKPOINT = re.compile(r"([a-z0-9_]+)-[0-9a-f]{8}\.pth")
_REPOSITORY = re.compile(r"models--(.+?)--(.+)")


def installed_encoder() -> tuple[str, Path] | None:
    """Name and weights of the best pretrained network that is here; none where there is none. Nothing is downloaded."""
    found = sorted([*_of_torchvision(), *_of_hub()], key=lambda pair: (_rank(pair[0]), pair[0]))
    return found[0] if found else None


def weights_name(path: Path) -> str:
    """The encoder that a file of weights is of, where its names tell."""
    if _GOOGLENET & set(read_weights(path)):
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
    """Checkpoints that torchvision has fetched; GoogLeNet's need no torchvision."""
    for path in sorted((Path(torch.hub.get_dir()) / "checkpoints").glob("*.pth")):
        match = _CHECKPOINT.fullmatch(path.name)
        if match and match[1] == "googlenet":
            yield "googlenet", path
        elif match and _has("torchvision"):
            yield f"torchvision:{match[1]}", path


def _of_hub() -> Iterator[tuple[str, Path]]:
    """Snapshots that timm and transformers have fetched from the hub."""
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    cache = Path(os.environ.get("HF_HUB_CACHE") or home / "hub")
    for weights in sorted(cache.glob("models--*--*/snapshots/*/model.safetensors")):
        match = _REPOSITORY.fullmatch(weights.parents[2].name)
        if match and match[1] == "timm" and _has("timm"):
            yield f"timm:{match[2]}", weights
        elif match and "dinov2" in match[2] and _has("transformers"):
            yield f"transformers:{match[1]}/{match[2]}", weights
