from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.own_photos import write_folder
from helpers.transformers import NAME, stand_in, write_snapshot
from safetensors.torch import save_file
from semimetric.pipeline.choice import Choice, Wishes, choose, settings_for
from torch import nn

from semimetric import SemiMetric, load
from semimetric.core.errors import InputError
from semimetric.estimators.runs import save
from semimetric.pipeline import choice

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)
FILE = Path("weights.npz")


@pytest.fixture(autouse=True)
def nothing_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "installed_encoder", lambda: None)


def chosen(
    kind: Any, shape: tuple[int, ...] = (), device: torch.device = CPU, method: str = "consensus", **w: Any
) -> Choice:
    return choose(kind, shape, method, Wishes(**w), device)


def test_vectors_get_a_small_network_or_none() -> None:
    assert chosen("vectors", (4,)) == Choice("mlp", "standardize")
    assert chosen("vectors", (4,), CUDA) == Choice("mlp", "standardize")
    assert chosen("vectors", (4,), method="lrml") == Choice("none", "standardize")
    assert chosen("vectors", (4,), method="lrml", encoder="mlp") == Choice("mlp", "standardize")
    assert chosen("vectors", (4,), method="lrml", encoder="none") == Choice("none", "standardize")
    assert chosen("vectors", (4,), preprocess="none") == Choice("mlp", "none")


@pytest.mark.parametrize(
    ("side", "device", "encoder", "told"),
    [
        (7, CPU, "mlp", False),
        (7, CUDA, "mlp", False),
        (8, CPU, "small-cnn", False),
        (15, CUDA, "small-cnn", False),
        (16, CPU, "small-cnn", True),
        (16, CUDA, "resnet9", False),
    ],
)
def test_images_get_the_network_that_their_size_and_the_device_allow(
    side: int, device: torch.device, encoder: str, told: bool
) -> None:
    found = chosen("images", (3, side, 40), device)
    assert (found.encoder, found.preprocess, found.side) == (encoder, "standardize", 0)
    assert ("no GPU" in found.why) == told


@pytest.mark.parametrize(("device", "side", "encoder"), [(CPU, 32, "small-cnn"), (CUDA, 64, "resnet9")])
def test_photographs_start_from_nothing_where_nothing_is_installed(
    device: torch.device, side: int, encoder: str
) -> None:
    found = chosen("photographs", device=device)
    assert (found.encoder, found.preprocess, found.side, found.backbone) == (encoder, "standardize", side, "")
    assert f"images of {side} x {side} pixels" in found.why
    assert "--weights FILE" in found.why
    assert chosen("photographs", device=device, side=7).encoder == "mlp"
    assert chosen("photographs", device=device, side=24).side == 24


def test_photographs_get_the_pretrained_network_that_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "installed_encoder", lambda: ("timm:resnet50", FILE))
    found = chosen("photographs")
    assert dataclasses.replace(found, why="") == Choice("linear", "none", 224, "timm:resnet50", FILE)
    assert found.why == "timm:resnet50 from weights.npz describes the photographs."
    tuned = chosen("photographs", fine_tune=True, side=96)
    assert dataclasses.replace(tuned, why="") == Choice("timm:resnet50", "imagenet", 96, weights=FILE)
    assert tuned.why == "timm:resnet50 from weights.npz is trained on."
    assert chosen("photographs", encoder="resnet9").backbone == ""
    with pytest.raises(InputError, match=r"preprocess is for networks that start from nothing.*timm:resnet50 sees"):
        chosen("photographs", preprocess="standardize")


def test_a_named_network_is_taken() -> None:
    assert chosen("photographs", encoder="resnet9") == Choice("resnet9", "standardize", 32)
    assert chosen("photographs", device=CUDA, encoder="resnet9") == Choice("resnet9", "standardize", 64)
    assert chosen("photographs", encoder="mlp", side=8, preprocess="none") == Choice("mlp", "none", 8)
    assert chosen("images", (3, 20, 30), encoder="mlp") == Choice("mlp", "standardize")
    described = Choice("linear", "none", 224, "timm:x", FILE)
    assert chosen("photographs", encoder="timm:x", weights=FILE) == described
    assert chosen("photographs", encoder="timm:x", weights=FILE, side=64) == dataclasses.replace(described, side=64)
    tuned = Choice("timm:x", "imagenet", 224, weights=FILE)
    assert chosen("photographs", encoder="timm:x", weights=FILE, fine_tune=True) == tuned
    assert chosen("photographs", encoder="timm:x", weights=FILE, fine_tune=True, preprocess="imagenet") == tuned
    assert chosen("images", (3, 80, 70), encoder="timm:x", weights=FILE) == dataclasses.replace(described, side=70)


def test_a_file_of_weights_tells_its_network(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    save_file({"conv1.conv.weight": torch.zeros(1)}, path)
    assert chosen("photographs", weights=path) == Choice("linear", "none", 224, "googlenet", path)
    save_file({"stem": torch.zeros(1)}, path)
    with pytest.raises(InputError, match=r"weights\.safetensors are not GoogLeNet's.*Name it as encoder"):
        chosen("photographs", weights=path)


def test_a_module_of_the_users_own_is_taken_as_it_is() -> None:
    module = nn.Flatten()
    assert chosen("photographs", encoder=module) == Choice(module, "imagenet", 224)
    assert chosen("photographs", encoder=module, side=16, preprocess="none") == Choice(module, "none", 16)
    assert chosen("images", (3, 8, 8), encoder=module) == Choice(module, "standardize")
    assert chosen("vectors", (3,), encoder=module) == Choice(module, "standardize")


@pytest.mark.parametrize(
    ("kind", "wishes", "message"),
    [
        (
            "vectors",
            {"weights": FILE},
            r"weights 'weights\.npz' is for pretrained networks.*not for vectors\. Leave it out",
        ),
        ("vectors", {"fine_tune": True}, "fine_tune is for pretrained networks of photographs, not for vectors"),
        ("vectors", {"side": 32}, "side is for photographs, which are brought to it, got 32 for vectors. Leave it out"),
        ("vectors", {"encoder": "resnet"}, "encoder must be one of auto, none, paper-mnist"),
        ("images", {"side": 32}, "got 32 for images"),
        ("images", {"fine_tune": True}, "not for a network that starts from nothing"),
        ("images", {"encoder": "none"}, "encoder must be one of auto, paper-mnist.*transformers:NAME, got 'none'"),
        ("photographs", {"fine_tune": True}, "starts from nothing, and there is no other on this machine"),
        ("photographs", {"encoder": "resnet9", "fine_tune": True}, "not for encoder 'resnet9'"),
        ("photographs", {"encoder": "resnet9", "weights": FILE}, "not for encoder 'resnet9'"),
        ("photographs", {"encoder": "googlenet"}, "'googlenet' is a pretrained network and weights names no file"),
        ("photographs", {"encoder": nn.Flatten(), "weights": FILE}, "not for a module of your own"),
        ("photographs", {"encoder": "timm:x", "weights": FILE, "fine_tune": True, "preprocess": "none"}, "timm:x sees"),
    ],
)
def test_wishes_that_cannot_be_met_are_refused(kind: Any, wishes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        chosen(kind, {"vectors": (4,), "images": (3, 20, 20)}.get(kind, ()), **wishes)


def test_unknown_methods_are_refused_first() -> None:
    with pytest.raises(InputError, match="method must be one of"):
        chosen("vectors", (4,), method="magic", encoder="magic")


def test_sight_is_of_photographs_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Choice("mlp", "standardize").sight(0) is None
    seen = Choice("small-cnn", "standardize", 32).sight(0)
    assert seen is not None
    assert (seen.side, seen.network) == (32, None)
    stand_in(monkeypatch)
    weights, _ = write_snapshot(tmp_path / "snapshot")
    described = Choice("linear", "none", 64, NAME, weights).sight(0)
    assert described is not None
    assert described.describe(torch.zeros(2, 3, 64, 64, dtype=torch.uint8), CPU).shape == (2, 5)


@pytest.mark.parametrize("fine_tune", [False, True])
def test_a_model_on_a_network_of_transformers_is_loaded_without_its_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fine_tune: bool
) -> None:
    stand_in(monkeypatch)
    weights, _ = write_snapshot(tmp_path / "snapshot", {"image_mean": [0.5] * 3, "image_std": [0.5] * 3})
    paths = sorted(write_folder(tmp_path / "photos", labelled=4, unlabelled=2).rglob("*.*g"))
    labels = [path.parent.name if path.parent.name != "unlabelled" else "" for path in paths]
    model = SemiMetric(encoder=NAME, weights=weights, side=64, fine_tune=fine_tune, epochs=2, random_state=0)
    model.fit(paths, labels)
    save(model, tmp_path / "run")
    for file in weights.parent.iterdir():
        file.unlink()
    again = load(tmp_path / "run")
    assert torch.equal(torch.tensor(again.transform(paths)), torch.tensor(model.transform(paths)))


LABELS = torch.tensor([0, 0, 1, 1, *[-1] * 16])


def test_settings_are_those_of_own_data_with_changes() -> None:
    settings, training = settings_for("consensus", "vectors", LABELS, {"epochs": 3, "head_share": 0.7})
    assert (settings.head_share, settings.gamma) == (0.7, 0.95)
    assert (training.epochs, training.optimizer, training.passes) == (3, "adamw", 2)
    settings, _ = settings_for("consensus", "images", LABELS, {})
    assert settings.gamma == 0.99


def test_settings_are_gentle_with_what_is_good_already() -> None:
    described, _ = settings_for("consensus", "descriptors", LABELS, {})
    assert (described.metric, described.relative) == ("within", True)
    trained, training = settings_for("consensus", "pretrained", LABELS, {})
    assert (trained.metric, trained.augmentation) == ("within", "photographs")
    assert training.lr < settings_for("consensus", "images", LABELS, {})[1].lr
    assert settings_for("triplet", "pretrained", LABELS, {})[1].lr == training.lr
    assert settings_for("triplet", "pretrained", LABELS, {})[1].batch_size < training.batch_size
    assert settings_for("triplet", "descriptors", LABELS, {})[1].lr == 1e-5
    assert settings_for("triplet", "images", LABELS, {})[1].lr == 1e-3
    assert settings_for("synthetic", "pretrained", LABELS, {})[1].lr < training.lr
    assert settings_for("consensus", "pretrained", LABELS, {"lr": 1e-4})[1].lr == 1e-4
    assert settings_for("consensus", "images", LABELS, {})[0].metric == "principal"


def test_what_a_network_sees_is_told_by_the_choice() -> None:
    assert chosen("vectors", (4,)).material("vectors") == "vectors"
    assert chosen("images", (3, 32, 32)).material("images") == "images"
    assert chosen("photographs").material("photographs") == "images"
    named = {"encoder": "googlenet", "weights": FILE}
    assert chosen("photographs", **named).material("photographs") == "descriptors"
    assert chosen("photographs", fine_tune=True, **named).material("photographs") == "pretrained"


def test_defaults_give_way_to_small_data_and_changes_do_not() -> None:
    few = torch.tensor([0, 0, 1, -1])
    assert settings_for("consensus", "vectors", few, {})[0].k == 3
    assert settings_for("consensus", "vectors", few, {"k": 9})[0].k == 9
    assert settings_for("lrml", "vectors", LABELS, {}, linear=True)[0].k == 6
    assert not hasattr(settings_for("triplet", "vectors", LABELS, {})[0], "k")
    single = torch.tensor([0, 1, -1, -1])
    assert settings_for("lrml", "vectors", LABELS, {})[1].selection == "labels"
    assert settings_for("lrml", "vectors", single, {})[1].selection == "last"
    assert settings_for("lrml", "vectors", single, {"selection": "labels"})[1].selection == "labels"


def test_an_epoch_on_images_has_steps_enough() -> None:
    assert settings_for("instance", "images", LABELS, {})[1].passes == 8
    assert settings_for("instance", "descriptors", torch.zeros(256 * 4), {})[1].passes == 2
    assert settings_for("instance", "images", torch.zeros(256 * 20), {})[1].passes == 1
    assert settings_for("instance", "images", LABELS, {"passes": 3})[1].passes == 3
    assert settings_for("instance", "vectors", LABELS, {})[1].passes == 1


def test_settings_that_nothing_has_are_refused_by_name() -> None:
    with pytest.raises(InputError, match="method 'lrml' has no setting 'margin'; it has: average, "):
        settings_for("lrml", "vectors", LABELS, {"margin": 1.0})
    with pytest.raises(InputError, match=r"k must be a whole number, got 2\.5"):
        settings_for("lrml", "vectors", LABELS, {"k": 2.5})
