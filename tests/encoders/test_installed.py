from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from semimetric.core.errors import InputError
from semimetric.encoders import installed_encoder, weights_name

TIMM: dict[str, Any] = {"architecture": "resnet50", "pretrained_cfg": {"input_size": [3, 224, 224]}}
DINO = {"model_type": "dinov2"}


class Machine:
    """Caches of a machine, and the libraries that are installed on it."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.checkpoints, self.hub = root / "torch" / "hub" / "checkpoints", root / "hf" / "hub"
        self.libraries: set[str] = {"timm", "torchvision", "transformers"}
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: object() if name in self.libraries else None)
        torchvision = ModuleType("torchvision")
        known = ["resnet18", "resnet50", "convnext_tiny", "vgg16"]
        vars(torchvision).update(models=SimpleNamespace(list_models=lambda module: known))
        monkeypatch.setitem(sys.modules, "torchvision", torchvision)

    def checkpoint(self, name: str) -> Path:
        self.checkpoints.mkdir(parents=True, exist_ok=True)
        path = self.checkpoints / name
        path.write_bytes(b"weights")
        return path

    def snapshot(self, repository: str, config: dict[str, Any] | None, revision: str = "aa") -> Path:
        """As the hub keeps it: the files of a snapshot are links to blobs."""
        folder = self.hub / f"models--{repository.replace('/', '--')}"
        snapshot, blobs = folder / "snapshots" / revision, folder / "blobs"
        snapshot.mkdir(parents=True)
        blobs.mkdir(exist_ok=True)
        save_file({"weight": torch.zeros(3)}, blobs / revision)
        (snapshot / "model.safetensors").symlink_to(blobs / revision)
        if config is not None:
            (snapshot / "config.json").write_text(json.dumps(config))
        return snapshot / "model.safetensors"


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    before = torch.hub.get_dir()
    for name in ("HF_HUB_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    torch.hub.set_dir(str(tmp_path / "torch" / "hub"))
    yield Machine(tmp_path, monkeypatch)
    torch.hub.set_dir(before)


def test_where_nothing_is_there_is_none(machine: Machine) -> None:
    assert installed_encoder() is None
    machine.checkpoints.mkdir(parents=True)
    machine.hub.mkdir(parents=True)
    assert installed_encoder() is None


def test_a_checkpoint_of_torchvision(machine: Machine) -> None:
    path = machine.checkpoint("resnet18-f37072fd.pth")
    assert installed_encoder() == ("torchvision:resnet18", path)
    machine.libraries.clear()
    assert installed_encoder() is None


def test_googlenet_needs_no_torchvision(machine: Machine) -> None:
    machine.libraries.clear()
    path = machine.checkpoint("googlenet-1378be20.pth")
    assert installed_encoder() == ("googlenet", path)


@pytest.mark.parametrize(
    "name",
    [
        "resnet50.pth",
        "resnet50-0676ba61.pth.partial",
        "fasterrcnn_resnet50_fpn_coco-258fb6c6.pth",
        "vgg16-397923af.pth",
        "Resnet50-0676ba61.pth",
    ],
)
def test_files_that_are_no_checkpoints_of_a_good_classifier_are_passed_over(machine: Machine, name: str) -> None:
    machine.checkpoint(name)
    assert installed_encoder() is None


def test_where_torch_keeps_its_hub_may_be_said_by_the_environment(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = machine.checkpoint("resnet18-f37072fd.pth")
    monkeypatch.setattr(torch.hub, "_hub_dir", None)
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    assert installed_encoder() == ("torchvision:resnet18", path)


def test_a_snapshot_of_timm(machine: Machine) -> None:
    weights = machine.snapshot("timm/resnet50.a1_in1k", TIMM)
    assert installed_encoder() == ("timm:resnet50.a1_in1k", weights)
    machine.libraries.remove("timm")
    assert installed_encoder() is None


def test_a_snapshot_of_timm_that_takes_another_side_alone_is_passed_over(machine: Machine) -> None:
    fixed = {"architecture": "vit", "pretrained_cfg": {"input_size": [3, 518, 518], "fixed_input_size": True}}
    machine.snapshot("timm/vit_small_patch14_dinov2.lvd142m", fixed)
    machine.snapshot("timm/resnet-with-another-config", {"model": "open_clip"})
    assert installed_encoder() is None
    fixed["pretrained_cfg"] = {"input_size": [3, 224, 224], "fixed_input_size": True}
    weights = machine.snapshot("timm/vit_small_patch16_dinov3.lvd1689m", fixed)
    assert installed_encoder() == ("timm:vit_small_patch16_dinov3.lvd1689m", weights)


def test_a_snapshot_of_transformers(machine: Machine) -> None:
    weights = machine.snapshot("facebook/dinov2-small", DINO)
    assert installed_encoder() == ("transformers:facebook/dinov2-small", weights)
    machine.libraries.remove("transformers")
    assert installed_encoder() is None


def test_models_of_words_are_passed_over(machine: Machine) -> None:
    machine.snapshot("someone/dinov2-captions", {"model_type": "llama"})
    assert installed_encoder() is None


@pytest.mark.parametrize("damage", ["no config", "torn config", "listed config", "torn weights", "lost blob", "empty"])
def test_damaged_snapshots_are_passed_over(machine: Machine, damage: str) -> None:
    weights = machine.snapshot("facebook/dinov2-small", None if damage == "no config" else DINO)
    if damage == "torn config":
        (weights.parent / "config.json").write_text('{"model_type": "din')
    elif damage == "listed config":
        (weights.parent / "config.json").write_text("[]")
    elif damage == "torn weights":
        weights.resolve().write_bytes(weights.read_bytes()[:-4])
    elif damage == "lost blob":
        weights.resolve().unlink()
    elif damage == "empty":
        weights.resolve().write_bytes(b"")
    assert installed_encoder() is None


def test_of_several_snapshots_the_current_one_is_taken_and_else_a_whole_one(machine: Machine) -> None:
    first, second = (machine.snapshot("facebook/dinov2-small", DINO, revision) for revision in ("aa", "bb"))
    assert installed_encoder() == ("transformers:facebook/dinov2-small", first)
    refs = machine.hub / "models--facebook--dinov2-small" / "refs"
    refs.mkdir()
    (refs / "main").write_text("bb\n")
    assert installed_encoder() == ("transformers:facebook/dinov2-small", second)
    second.resolve().unlink()
    assert installed_encoder() == ("transformers:facebook/dinov2-small", first)


def test_what_describes_best_is_preferred(machine: Machine) -> None:
    found = []
    machine.checkpoint("googlenet-1378be20.pth")
    found.append(installed_encoder())
    machine.checkpoint("resnet18-f37072fd.pth")
    found.append(installed_encoder())
    machine.checkpoint("resnet50-0676ba61.pth")
    found.append(installed_encoder())
    machine.snapshot("timm/resnet50.a1_in1k", TIMM)
    found.append(installed_encoder())
    machine.checkpoint("convnext_tiny-983f1562.pth")
    found.append(installed_encoder())
    machine.snapshot("facebook/dinov2-small", DINO)
    found.append(installed_encoder())
    machine.snapshot("facebook/dinov2-base", DINO)
    found.append(installed_encoder())
    assert [pair and pair[0] for pair in found] == [
        "googlenet",
        "torchvision:resnet18",
        "torchvision:resnet50",
        "timm:resnet50.a1_in1k",
        "torchvision:convnext_tiny",
        "transformers:facebook/dinov2-small",
        "transformers:facebook/dinov2-base",
    ]


def test_where_the_hub_keeps_what_it_fetched(machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = machine.snapshot("facebook/dinov2-small", DINO)
    monkeypatch.delenv("HF_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert installed_encoder() is None
    monkeypatch.setenv("HF_HUB_CACHE", str(machine.hub))
    assert installed_encoder() is not None
    monkeypatch.delenv("HF_HUB_CACHE")
    (tmp_path / "home" / ".cache").mkdir(parents=True)
    (tmp_path / "home" / ".cache" / "huggingface").symlink_to(tmp_path / "hf")
    assert installed_encoder() is not None
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "elsewhere"))
    assert installed_encoder() is None
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "huggingface").symlink_to(weights.parents[4])
    assert installed_encoder() is not None


@pytest.mark.parametrize("name", ["conv1/7x7_s2.w", "conv1.conv.weight"])
def test_weights_of_googlenet_tell_their_network(tmp_path: Path, name: str) -> None:
    np.savez(tmp_path / "weights.npz", **{name: np.zeros(1)})
    assert weights_name(tmp_path / "weights.npz") == "googlenet"


def test_weights_that_do_not_tell_their_network_are_refused(tmp_path: Path) -> None:
    save_file({"layer1.weight": torch.zeros(1)}, tmp_path / "a.safetensors")
    with pytest.raises(
        InputError,
        match=r"a\.safetensors are of none of googlenet.*Name their network as encoder, such as timm:resnet50",
    ):
        weights_name(tmp_path / "a.safetensors")
