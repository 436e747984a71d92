"""Descriptors of a frozen network in place of images, and experiments on photographs from folder to scores."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from helpers.birds import write_birds
from torch import nn

from semimetric.core.errors import InputError
from semimetric.data import Dataset, Examples, build_preprocess, decode_image
from semimetric.encoders import build_encoder, encode
from semimetric.encoders.photographs import PhotoTransform
from semimetric.pipeline.benchmark import evaluate_run, fit_benchmark
from semimetric.pipeline.descriptors import described
from semimetric.pipeline.plan import NetworkSettings
from semimetric.pipeline.resolve import resolve_benchmark

GOOGLENET = NetworkSettings("linear", backbone="googlenet", weights="random", preprocess="none")


@pytest.fixture
def dataset() -> Dataset:
    generator = torch.Generator().manual_seed(0)
    train, test = (
        Examples(torch.randint(256, (n, 3, 64, 64), generator=generator).byte(), torch.arange(n) % 2) for n in (6, 4)
    )
    return Dataset("noise", train, test, ("a", "b"))


def test_descriptors_are_the_features_of_the_network_and_labels_stay(dataset: Dataset) -> None:
    found = described(dataset, GOOGLENET, seed=3)
    network = build_encoder("googlenet", (3, 64, 64), 3)
    scaled = build_preprocess("imagenet", dataset.test.inputs)(dataset.test.inputs)
    assert torch.allclose(found.test.inputs, encode(network, scaled), atol=1e-6)
    assert found.train.inputs.shape == (6, 1024)
    assert torch.equal(found.train.labels, dataset.train.labels)
    assert found.class_names == dataset.class_names


def test_kept_descriptors_are_read_again_and_only_for_the_same_images_and_network(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "kept.safetensors"
    cached = dataclasses.replace(GOOGLENET, descriptors=str(path))
    first = described(dataset, cached, 0)
    monkeypatch.setattr("semimetric.pipeline.descriptors.build_encoder", lambda *_, **__: pytest.fail("computed again"))
    again = described(dataset, cached, 0)
    assert torch.equal(first.train.inputs, again.train.inputs)
    assert torch.equal(first.test.inputs, again.test.inputs)
    with pytest.raises(InputError, match=r"kept.safetensors' differ in weights from what is asked for now; name"):
        described(dataset, cached, 1)
    others = [
        dataset.train.subset([0, 1]),
        dataset.train.subset([1, 0, 2, 3, 4, 5]),
        Examples(dataset.train.inputs, 1 - dataset.train.labels),
        Examples(dataset.train.inputs.flip(3), dataset.train.labels),
    ]
    for train in others:
        with pytest.raises(InputError, match="differ in images from"):
            described(dataclasses.replace(dataset, train=train), cached, 0)


def test_what_cannot_be_read_or_kept_is_said_before_anything_is_computed(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("semimetric.pipeline.descriptors.build_encoder", lambda *_, **__: pytest.fail("computed"))
    with pytest.raises(InputError, match=r"none\.npz does not exist"):
        described(dataset, dataclasses.replace(GOOGLENET, weights=str(tmp_path / "none.npz")), 0)
    with pytest.raises(InputError, match=r"there is no folder '.*missing'"):
        described(dataset, dataclasses.replace(GOOGLENET, descriptors=str(tmp_path / "missing" / "kept")), 0)


@pytest.fixture
def birds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return write_birds(tmp_path / "birds", monkeypatch)


def test_photographs_are_described_as_they_are_read(
    birds: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = sorted(birds.rglob("*.png"))[:7]
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"no image")
    monkeypatch.setattr("semimetric.encoders.photographs.BATCH", 3)
    network = build_encoder("googlenet", (3, 64, 64), 0)
    transform = PhotoTransform(64, network=network)
    rows, descriptors, skipped = transform.read([paths[0], broken, *paths[1:]], "cpu")
    assert network.training
    assert rows.tolist() == [0, 2, 3, 4, 5, 6, 7]
    assert list(skipped) == [broken]
    images = torch.stack([decode_image(path, 64) for path in paths])
    scaled = build_preprocess("imagenet", images)(images)
    assert torch.allclose(descriptors, encode(network, scaled), atol=1e-5)
    assert len(transform.read([broken], "cpu")[1]) == 0


@pytest.mark.filterwarnings("ignore::semimetric.training.TrainingWarning")
@pytest.mark.parametrize("method", ["affinity-triplets", "consensus", "lrml", "instance"])
def test_photographs_from_folder_to_scores_with_a_frozen_network(method: str, birds: Path, tmp_path: Path) -> None:
    values = {"components": 6} if method != "lrml" else {}
    values |= {"k": 6} if method != "instance" else {}
    experiment = resolve_benchmark(
        "cub200",
        method,
        backbone="googlenet",
        weights="random",
        descriptors=str(tmp_path / "kept.safetensors"),
        side=64,
        labels_per_class=3,
        validation_share=0.3,
        epochs=1,
        **values,
    )
    assert experiment.split.withheld == "classes"
    outcome = fit_benchmark(experiment, tmp_path / "run", birds, "cpu")
    assert outcome["final"]["recall@1"] > 0.5
    assert evaluate_run(tmp_path / "run", birds, "cpu")["scores"] == pytest.approx(outcome["final"])


@pytest.mark.filterwarnings("ignore::semimetric.training.TrainingWarning")
def test_photographs_can_train_the_network_itself(birds: Path) -> None:
    settings = {
        "backbone": "",
        "encoder": "googlenet",
        "preprocess": "imagenet",
        "weights": "random",
        "side": 64,
        "labels_per_class": 3,
    }
    experiment = resolve_benchmark(
        "cub200", "triplet", **settings, batch_size=6, epochs=1, passes=1, validation_share=0.0, selection="last"
    )
    assert fit_benchmark(experiment, None, birds, "cpu")["epochs"] == 1


@pytest.mark.filterwarnings("ignore::semimetric.training.TrainingWarning")
@pytest.mark.parametrize("method", ["affinity-triplets", "triplet"])
def test_a_metric_may_start_from_principal_components(method: str) -> None:
    quick = {"labels_per_class": 5, "epochs": 0, "components": 4}
    scores = {
        start: fit_benchmark(resolve_benchmark("digits", method, start=start, **quick), device="cpu")["initial"][
            "recall@1"
        ]
        for start in ("random", "principal")
    }
    assert scores["principal"] > scores["random"]


def test_a_linear_encoder_starts_as_it_finds_things() -> None:
    points = torch.randn(4, 7, generator=torch.Generator().manual_seed(0))
    encoder = build_encoder("linear", (7,), 0)
    assert torch.equal(encoder(points), points)
    assert isinstance(encoder[1], nn.Linear)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"weights": ""}, "weights are missing: name the file with those of 'googlenet-rmac', or say 'random'"),
        ({"backbone": "mlp"}, "backbone 'mlp' is no pretrained network"),
        ({"backbone": "", "encoder": "googlenet"}, "encoder 'googlenet' expects preprocess 'imagenet', got 'none'"),
        ({"backbone": "", "descriptors": "kept"}, "descriptors caches the features of a backbone, and there is none"),
        ({"encoder": "googlenet", "preprocess": "imagenet"}, "encoder 'googlenet' takes photographs, but backbone"),
        ({"fit": "stretch"}, "fit must be one of crop, squash, got 'stretch'"),
        ({"withheld": "rows"}, "withheld must be one of examples, classes, got 'rows'"),
    ],
)
def test_settings_of_photographs_are_refused_before_any_is_read(
    values: dict, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("semimetric.pipeline.data.load_dataset", lambda *_, **__: pytest.fail("read"))
    with pytest.raises(InputError, match=message):
        fit_benchmark(resolve_benchmark("cub200", "triplet", **values), device="cpu")


def test_without_a_validation_share_the_last_model_is_kept() -> None:
    assert resolve_benchmark("cub200", "affinity-triplets", validation_share=0).training.selection == "last"
