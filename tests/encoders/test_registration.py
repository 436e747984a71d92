"""Encoders of other code: a pretrained backbone with its file of weights, and the table of this package."""

import dataclasses
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import semimetric as sm
from semimetric.core.errors import InputError
from semimetric.encoders import (
    build_encoder,
    encode,
    encoder_names,
    installed_encoder,
    output_width,
    rebuild_encoder,
    takes_photographs,
    weights_name,
)
from semimetric.encoders.registry import ENCODERS
from semimetric.encoders.weights import load_tensors, read_weights

IMAGES = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))


class Tiny(nn.Module):
    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.tiny_stem = nn.Conv2d(3, width, 3)

    def forward(self, images: Tensor) -> Tensor:
        return self.tiny_stem(images).mean((2, 3))


def load(path: Path) -> Tiny:
    network = Tiny()
    load_tensors(network, read_weights(path), path, ignored=("head.",))
    return network


def rebuild(tensors: Mapping[str, Tensor]) -> Tiny:
    network = Tiny(len(tensors["tiny_stem.bias"]))
    network.load_state_dict(tensors)
    return network


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> sm.EncoderSpec:
    monkeypatch.setattr(ENCODERS, "_loaded", dict(ENCODERS._loaded))
    return sm.register_encoder(
        sm.EncoderSpec(
            name="tiny-resnet",
            build=lambda shape, init: Tiny(),
            load=load,
            recognises=lambda tensors: "tiny_stem.weight" in tensors,
            rebuild=rebuild,
            smallest=32,
            checkpoint="tinyresnet",
        )
    )


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    tensors = {f"tiny_stem.{name}": value.detach() for name, value in Tiny().tiny_stem.named_parameters()}
    path = tmp_path / "tiny.safetensors"
    save_file(tensors | {"head.weight": torch.zeros(2)}, path)
    return path


def test_a_backbone_is_known_by_name(tiny: sm.EncoderSpec) -> None:
    assert encoder_names()[-1] == "tiny-resnet"
    assert takes_photographs("tiny-resnet")
    first, again, other = (build_encoder("tiny-resnet", (3, 32, 32), seed) for seed in (1, 1, 2))
    assert torch.equal(first(IMAGES), again(IMAGES))
    assert not torch.equal(first(IMAGES), other(IMAGES))
    with pytest.raises(InputError, match=r"'tiny-resnet' needs colour images .* at least 32 x 32 pixels"):
        build_encoder("tiny-resnet", (3, 31, 32), 0)
    with pytest.raises(InputError, match=r"take a file are googlenet, googlenet-rmac.*tiny-resnet and those of timm"):
        build_encoder("mlp", (4,), 0, weights="x.npz")
    with pytest.raises(InputError, match="'tiny-resnet' already"):
        sm.register_encoder(dataclasses.replace(tiny, smallest=8))


def test_its_weights_are_recognised_loaded_and_rebuilt(tiny: sm.EncoderSpec, weights: Path) -> None:
    assert weights_name(weights) == "tiny-resnet"
    encoder = build_encoder(weights_name(weights), (3, 32, 32), seed=0, weights=weights)
    assert torch.equal(encoder.tiny_stem.weight, read_weights(weights)["tiny_stem.weight"])
    assert output_width(encoder, IMAGES) == 4
    wider = Tiny(6)
    rebuilt = rebuild_encoder("tiny-resnet", (3, 32, 32), wider.state_dict())
    assert torch.equal(encode(rebuilt, IMAGES), encode(wider, IMAGES))


def test_its_checkpoint_is_found_where_torch_keeps_such_files(
    tiny: sm.EncoderSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    (tmp_path / "checkpoints").mkdir()
    path = tmp_path / "checkpoints" / "tinyresnet-0123abcd.pth"
    path.write_bytes(b"weights")
    assert installed_encoder() == ("tiny-resnet", path)


def test_an_encoder_from_scratch_needs_no_more_than_a_function(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ENCODERS, "_loaded", dict(ENCODERS._loaded))
    sm.register_encoder(sm.EncoderSpec(name="flat", build=lambda shape, init: nn.Linear(shape[0], 2)))
    assert not takes_photographs("flat")
    encoder = build_encoder("flat", (5,), seed=3)
    rebuilt = rebuild_encoder("flat", (5,), encoder.state_dict())
    assert torch.equal(rebuilt.weight, encoder.weight)
    with pytest.raises(InputError, match="weights must be left out for encoder 'flat'"):
        build_encoder("flat", (5,), 0, weights="x.npz")


def test_the_table_says_of_each_spec_what_the_spec_says() -> None:
    for name in encoder_names():
        assert ENCODERS[name].name == name
        assert (ENCODERS[name].load is not None) == takes_photographs(name)


PACKAGE = """
from torch import nn
from semimetric import EncoderSpec

OUTSIDE = EncoderSpec(name="outside", build=lambda shape, init: nn.Linear(shape[0], 3))
"""


def test_names_are_known_without_torch_and_packages_offer_more(tmp_path: Path) -> None:
    (tmp_path / "outside.py").write_text(PACKAGE)
    info = tmp_path / "outside-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: outside\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[semimetric.encoders]\noutside = outside:OUTSIDE\n")
    program = (
        "import sys; from semimetric.encoders import build_encoder, encoder_names, takes_photographs; "
        "names = ('mlp', 'googlenet', 'timm:resnet50', 'nothing'); "
        "print(encoder_names()[-1], *map(takes_photographs, names), 'torch' in sys.modules); "
        "print(build_encoder('outside', (4,), seed=0).weight.shape[0])"
    )
    paths = os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH"))))
    done = subprocess.run(
        [sys.executable, "-c", program], env=os.environ | {"PYTHONPATH": paths}, capture_output=True, text=True
    )
    assert done.stdout.split() == ["outside", "False", "True", "True", "False", "False", "3"], done.stderr
