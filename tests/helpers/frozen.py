"""A tiny pretrained network for photographs, with a file of weights, and a run that keeps it frozen."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import semimetric as sm
from semimetric.encoders.registry import ENCODERS
from semimetric.encoders.weights import load_tensors, read_weights

SEEN = [0]
"""Photographs that the network has seen."""


class Frozen(nn.Module):
    """(N, 3, 16, 16) -> (N, 12): the colours of the four quarters, mixed."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen_mix = nn.Linear(12, 12)

    def forward(self, images: Tensor) -> Tensor:
        if not torch.compiler.is_compiling():  # an export has no number of photographs
            SEEN[0] += len(images)
        mixed: Tensor = self.frozen_mix(nn.functional.adaptive_avg_pool2d(images, 2).flatten(1))
        return mixed


def _load(path: Path) -> Frozen:
    network = Frozen()
    load_tensors(network, read_weights(path), path)
    return network


@contextmanager
def frozen_network(folder: Path) -> Iterator[list[str]]:
    """Register the network and write its weights; the options of ``fit`` that name them."""
    known = dict(ENCODERS._loaded)
    spec = sm.EncoderSpec(
        name="frozen",
        build=lambda shape, init: Frozen(),
        load=_load,
        recognises=lambda tensors: "frozen_mix.weight" in tensors,
    )
    sm.register_encoder(spec)
    torch.manual_seed(0)
    save_file(Frozen().state_dict(), folder / "frozen.safetensors")
    try:
        yield ["--encoder", "frozen", "--weights", str(folder / "frozen.safetensors"), "--side", "16"]
    finally:
        ENCODERS._loaded = known
