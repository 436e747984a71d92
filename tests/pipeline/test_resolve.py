from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.own_photos import write_folder
from helpers.transformers import NAME, stand_in, write_snapshot
from safetensors.torch import save_file
from torch import nn

from semimetric import SemiMetric, load
from semimetric.core.errors import InputError
from semimetric.estimators.runs import save
from semimetric.methods import METHODS
from semimetric.pipeline import network
from semimetric.pipeline.descriptors import photo_transform
from semimetric.pipeline.network import NetworkChoice, NetworkRequest, choose_network
from semimetric.pipeline.plan import Material, NetworkSettings, Plan
from semimetric.pipeline.resolve import check_own, resolve_benchmark, resolve_own

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)
FILE = Path("weights.npz")


@pytest.fixture(autouse=True)
def nothing_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "installed_encoder", lambda: None)


def choice(
    kind: Any, shape: tuple[int, ...] = (), device: torch.device = CPU, method: str = "consensus", **w: Any
) -> NetworkChoice:
    return choose_network(kind, shape, method, NetworkRequest(**w), device)


def chosen(kind: Any, shape: tuple[int, ...] = (), *others: Any, **given: Any) -> NetworkSettings:
    return choice(kind, shape, *others, **given).settings


def settings(
    encoder: str, preprocess: Any, side: int = 0, backbone: str = "", weights: Path | str = ""
) -> NetworkSettings:
    named = {"backbone": backbone, "weights": str(weights), "frozen_share": 0.5 if backbone else 0.0}
    return NetworkSettings(encoder, **named, side=side, init="he", preprocess=preprocess)


def test_settings_that_fit_some_data_are_not_refused_before_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=r"nesterov is a momentum of SGD"):
        check_own("consensus", nesterov=True)
    monkeypatch.setattr(METHODS["consensus"], "defaults_on", {"images": {"optimizer": "sgd"}})
    check_own("consensus", nesterov=True)


def test_vectors_get_a_small_network_or_none() -> None:
    assert chosen("vectors", (4,)) == settings("mlp", "standardize")
    assert chosen("vectors", (4,), CUDA) == settings("mlp", "standardize")
    assert chosen("vectors", (4,), method="lrml") == settings("none", "standardize")
    assert chosen("vectors", (4,), method="lrml", encoder="mlp") == settings("mlp", "standardize")
    assert chosen("vectors", (4,), method="lrml", encoder="none") == settings("none", "standardize")
    assert chosen("vectors", (4,), preprocess="none") == settings("mlp", "none")


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
    found = choice("images", (3, side, 40), device)
    assert found.settings == settings(encoder, "standardize")
    assert ("no GPU" in found.note) == told


@pytest.mark.parametrize(
    ("kind", "shape", "device", "examples", "encoder"),
    [
        ("images", (3, 32, 32), CUDA, 9_999, "resnet9"),
        ("images", (3, 32, 32), CUDA, 10_000, "resnet9-512"),
        ("images", (1, 32, 32), CUDA, 10_000, "resnet9"),  # may be digits, which are not to be mirrored
        ("images", (4, 32, 32), CUDA, 10_000, "resnet9"),
        ("images", (3, 8, 8), CUDA, 10_000, "small-cnn"),
        ("images", (3, 32, 32), CPU, 10_000, "small-cnn"),
        ("photographs", (), CUDA, 10_000, "resnet9-512"),
    ],
)
def test_many_images_in_colour_are_named_in_every_step_on_a_gpu(
    kind: str, shape: tuple[int, ...], device: torch.device, examples: int, encoder: str
) -> None:
    labels = torch.full((examples,), -1)
    labels[:20] = torch.arange(20) % 2
    plan = resolve_own(kind, shape, labels, device)
    assert plan.network.encoder == encoder
    assert (plan.method_settings.naming == "step") == (encoder == "resnet9-512")
    assert (plan.training.optimizer == "sgd") == (encoder == "resnet9-512")
    assert (plan.method_settings.metric == "whitened") == (encoder == "resnet9-512")
    given = resolve_own(kind, shape, labels, device, encoder=encoder, naming="epoch", optimizer="adam")
    assert (given.method_settings.naming, given.training.optimizer) == ("epoch", "adam")
    assert resolve_own(kind, shape, labels, device, "triplet").network.encoder != "resnet9-512"


@pytest.mark.parametrize(
    ("device", "examples", "told"),
    [(CPU, 20_000, "there is no GPU"), (CUDA, 400, "there are 400"), (CUDA, 10_000, "")],
)
def test_a_network_for_many_images_on_a_gpu_comes_with_a_word_elsewhere(
    device: torch.device, examples: int, told: str
) -> None:
    labels = torch.full((examples,), -1)
    labels[:20] = torch.arange(20) % 2
    note = resolve_own("images", (3, 32, 32), labels, device, encoder="resnet9-512").note
    assert bool(note) == bool(told)
    assert told in note
    assert "resnet9-512 and its settings" not in resolve_own("images", (3, 32, 32), labels, device).note


@pytest.mark.parametrize("encoder", ["resnet9-512", "wrn28-2"])
def test_a_residual_encoder_brings_its_settings_to_a_benchmark(encoder: str) -> None:
    plan = resolve_benchmark("cifar10", encoder=encoder, lr=0.05)
    assert (plan.method_settings.naming, plan.training.optimizer, plan.training.lr) == ("step", "sgd", 0.05)
    assert plan.training.compile
    small = resolve_benchmark("cifar10")
    assert (small.training.optimizer, small.training.compile, small.method_settings.naming) == ("adamw", True, "step")
    assert resolve_benchmark("fashion-mnist").method_settings.naming == "step"
    assert resolve_benchmark("mnist").method_settings.naming == "epoch"
    for dataset in ("cifar10", "fashion-mnist"):  # whose own shrinkage is smaller
        found = resolve_benchmark(dataset, encoder=encoder).method_settings
        assert (found.metric, found.shrinkage) == ("whitened", 3.0)
    assert resolve_benchmark("cifar10", "triplet", encoder=encoder).training.optimizer != "sgd"
    for other in ({"optimizer": "adamw"}, {"momentum": 0.0}):  # have no momentum for Nesterov's
        assert not resolve_benchmark("cifar10", encoder=encoder, **other).training.nesterov
        check_own("consensus", encoder=encoder, **other)
    check_own("consensus", encoder=encoder, nesterov=True)
    with pytest.raises(InputError, match="nesterov is a momentum of SGD"):
        resolve_benchmark("cifar10", encoder=encoder, optimizer="adamw", nesterov=True)


def test_fashion_mnist_has_a_whitened_metric_and_half_precision_on_a_cpu() -> None:
    plan = resolve_benchmark("fashion-mnist")
    assert (plan.method_settings.metric, plan.method_settings.shrinkage) == ("whitened", 0.3)
    assert plan.training.precision == "auto"
    assert resolve_benchmark("mnist").method_settings.metric == "principal"


def test_statistics_are_frozen_only_where_they_are_of_pretrained_weights() -> None:
    def frozen(**settings: Any) -> bool:
        return resolve_benchmark("cub200", **settings).training.freeze_norm

    assert frozen()
    assert frozen(encoder="efficientnet-lite2")
    assert not frozen(encoder="resnet9", preprocess="standardize")
    assert not frozen(weights="random")
    assert not frozen(backbone="googlenet-rmac")
    assert frozen(weights="random", freeze_norm=True)
    assert not frozen(freeze_norm=False)


@pytest.mark.parametrize(("device", "side", "encoder"), [(CPU, 32, "small-cnn"), (CUDA, 64, "resnet9")])
def test_photographs_start_from_nothing_where_nothing_is_installed(
    device: torch.device, side: int, encoder: str
) -> None:
    found = choice("photographs", device=device)
    assert found.settings == settings(encoder, "standardize", side)
    assert f"images of {side} x {side} pixels" in found.note
    assert "--weights FILE" in found.note
    assert chosen("photographs", device=device, side=7).encoder == "mlp"
    assert chosen("photographs", device=device, side=24).side == 24


def test_photographs_get_the_pretrained_network_that_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "installed_encoder", lambda: ("timm:resnet50", FILE))
    found = choice("photographs")
    assert found.settings == settings("linear", "none", 224, "timm:resnet50", FILE)
    assert found.note == "timm:resnet50 from weights.npz extracts the features."
    tuned = choice("photographs", fine_tune=True, side=96)
    assert tuned.settings == settings("timm:resnet50", "imagenet", 96, weights=FILE)
    assert tuned.note == "timm:resnet50 from weights.npz is fine-tuned."
    assert chosen("photographs", encoder="resnet9").backbone == ""
    with pytest.raises(InputError, match=r"preprocess is for networks trained from scratch.*timm:resnet50 needs"):
        chosen("photographs", preprocess="standardize")


def test_a_named_network_is_taken() -> None:
    assert chosen("photographs", encoder="resnet9") == settings("resnet9", "standardize", 32)
    assert chosen("photographs", device=CUDA, encoder="resnet9") == settings("resnet9", "standardize", 64)
    assert chosen("photographs", encoder="mlp", side=8, preprocess="none") == settings("mlp", "none", 8)
    assert chosen("images", (3, 20, 30), encoder="mlp") == settings("mlp", "standardize")
    described = settings("linear", "none", 224, "timm:x", FILE)
    assert chosen("photographs", encoder="timm:x", weights=FILE) == described
    assert chosen("photographs", encoder="timm:x", weights=FILE, side=64) == dataclasses.replace(described, side=64)
    tuned = settings("timm:x", "imagenet", 224, weights=FILE)
    assert chosen("photographs", encoder="timm:x", weights=FILE, fine_tune=True) == tuned
    assert chosen("photographs", encoder="timm:x", weights=FILE, fine_tune=True, preprocess="imagenet") == tuned
    assert chosen("images", (3, 80, 70), encoder="timm:x", weights=FILE) == dataclasses.replace(described, side=70)


def test_a_file_of_weights_tells_its_network(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    save_file({"conv1.conv.weight": torch.zeros(1)}, path)
    assert chosen("photographs", weights=path) == settings("linear", "none", 224, "googlenet", path)
    save_file({"stem": torch.zeros(1)}, path)
    with pytest.raises(InputError, match=r"weights\.safetensors are of none of googlenet.*Name their network"):
        chosen("photographs", weights=path)


def test_a_module_of_the_users_own_is_taken_as_it_is() -> None:
    module = nn.Flatten()
    name = "torch.nn.modules.flatten.Flatten"
    assert choice("photographs", encoder=module).module is module
    assert chosen("photographs", encoder=module) == settings(name, "imagenet", 224)
    assert chosen("photographs", encoder=module, side=16, preprocess="none") == settings(name, "none", 16)
    assert chosen("images", (3, 8, 8), encoder=module) == settings(name, "standardize")
    assert chosen("vectors", (3,), encoder=module) == settings(name, "standardize")


@pytest.mark.parametrize(
    ("kind", "wishes", "message"),
    [
        (
            "vectors",
            {"weights": FILE},
            r"weights 'weights\.npz' is for pretrained networks.*not for vectors\. Leave it out",
        ),
        ("vectors", {"fine_tune": True}, "fine_tune is for pretrained networks of photographs, not for vectors"),
        ("vectors", {"side": 32}, "side is for photographs, got 32 for vectors. Leave it out"),
        ("vectors", {"encoder": "resnet"}, "encoder must be one of auto, none, paper-mnist"),
        ("images", {"side": 32}, "got 32 for images"),
        ("images", {"fine_tune": True}, "not for a network trained from scratch"),
        ("images", {"encoder": "none"}, "encoder must be one of auto, paper-mnist.*transformers:NAME, got 'none'"),
        ("photographs", {"fine_tune": True}, "trained from scratch, and no pretrained one is installed"),
        ("photographs", {"encoder": "resnet9", "fine_tune": True}, "not for encoder 'resnet9'"),
        ("photographs", {"encoder": "resnet9", "weights": FILE}, "not for encoder 'resnet9'"),
        ("photographs", {"encoder": "googlenet"}, "'googlenet' is a pretrained network and weights names no file"),
        ("photographs", {"encoder": nn.Flatten(), "weights": FILE}, "not for a module of your own"),
        (
            "photographs",
            {"encoder": "timm:x", "weights": FILE, "fine_tune": True, "preprocess": "none"},
            "timm:x needs",
        ),
    ],
)
def test_wishes_that_cannot_be_met_are_refused(kind: Any, wishes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        chosen(kind, {"vectors": (4,), "images": (3, 20, 20)}.get(kind, ()), **wishes)


def test_unknown_methods_are_refused_first() -> None:
    with pytest.raises(InputError, match="method must be one of"):
        chosen("vectors", (4,), method="magic", encoder="magic")


def test_photographs_become_images_or_features(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = photo_transform(settings("small-cnn", "standardize", 32), 0)
    assert (plain.side, plain.network) == (32, None)
    stand_in(monkeypatch)
    weights, _ = write_snapshot(tmp_path / "snapshot")
    transform = photo_transform(settings("linear", "none", 64, NAME, weights), 0)
    assert transform.inputs(torch.zeros(2, 3, 64, 64, dtype=torch.uint8), CPU).shape == (2, 5)


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
EXAMPLES: dict[Material, dict[str, Any]] = {
    "vectors": {"kind": "vectors", "shape": (4,), "encoder": "mlp"},
    "images": {"kind": "images", "shape": (3, 32, 32)},
    "descriptors": {"kind": "photographs", "shape": (), "encoder": "googlenet", "weights": FILE},
    "pretrained": {"kind": "photographs", "shape": (), "encoder": "googlenet", "weights": FILE, "fine_tune": True},
}


def planned(method: str, material: Material, labels: Any = LABELS, **given: Any) -> Plan:
    """The plan of a method on own data of which the encoder sees this material."""
    return resolve_own(labels=labels, device=CPU, method=method, **EXAMPLES[material] | given)


def test_settings_are_those_of_own_data_with_changes() -> None:
    plan = planned("consensus", "vectors", epochs=3, head_share=0.7)
    assert (plan.method_settings.head_share, plan.method_settings.gamma) == (0.7, 0.95)
    assert (plan.training.epochs, plan.training.optimizer, plan.training.passes) == (3, "adamw", 2)
    assert planned("consensus", "images").method_settings.gamma == 0.99


def test_settings_are_gentle_with_what_is_good_already() -> None:
    described, trained = planned("consensus", "descriptors"), planned("consensus", "pretrained")
    assert (described.method_settings.metric, described.method_settings.relative) == ("within", True)
    assert (trained.method_settings.metric, trained.method_settings.augmentation) == ("within", "photographs")
    rates = {(m, on): planned(m, on).training.lr for m in ("consensus", "triplet", "synthetic") for on in EXAMPLES}
    assert rates["consensus", "pretrained"] < rates["consensus", "images"]
    assert rates["triplet", "pretrained"] == rates["consensus", "pretrained"]
    assert planned("triplet", "pretrained").training.batch_size < trained.training.batch_size
    assert (rates["triplet", "descriptors"], rates["triplet", "images"]) == (1e-5, 1e-3)
    assert rates["synthetic", "pretrained"] < rates["consensus", "pretrained"]
    assert planned("consensus", "pretrained", lr=1e-4).training.lr == 1e-4
    assert planned("consensus", "images").method_settings.metric == "principal"


def test_what_the_encoder_sees_is_told_by_the_choice() -> None:
    assert choice("vectors", (4,)).material("vectors") == "vectors"
    assert choice("images", (3, 32, 32)).material("images") == "images"
    assert choice("photographs").material("photographs") == "images"
    named = {"encoder": "googlenet", "weights": FILE}
    assert choice("photographs", **named).material("photographs") == "descriptors"
    assert choice("photographs", fine_tune=True, **named).material("photographs") == "pretrained"


def test_defaults_give_way_to_small_data_and_changes_do_not() -> None:
    few, single = torch.tensor([0, 0, 1, -1]), torch.tensor([0, 1, -1, -1])
    assert planned("consensus", "vectors", few).method_settings.k == 3
    assert planned("consensus", "vectors", few, k=9).method_settings.k == 9
    assert planned("lrml", "vectors", encoder="none").method_settings.k == 6
    assert not hasattr(planned("triplet", "vectors").method_settings, "k")
    assert planned("lrml", "vectors").training.selection == "labels"
    assert planned("lrml", "vectors", single).training.selection == "last"
    assert planned("lrml", "vectors", single, selection="labels").training.selection == "labels"


def test_an_epoch_on_images_has_steps_enough() -> None:
    assert planned("instance", "images").training.passes == 8
    assert planned("instance", "images", torch.zeros(256 * 4)).training.passes == 2
    assert planned("instance", "descriptors", torch.zeros(256 * 4)).training.passes == 1
    assert planned("instance", "images", torch.zeros(256 * 20)).training.passes == 1
    assert planned("instance", "images", passes=3).training.passes == 3
    assert planned("instance", "vectors").training.passes == 1


def test_settings_that_nothing_has_are_refused_by_name() -> None:
    with pytest.raises(InputError, match=r"'lrml' has no setting 'margin' \(it is one of triplet\); it has: average"):
        planned("lrml", "vectors", margin=1.0)
    with pytest.raises(InputError, match=r"k must be a whole number, got 2\.5"):
        planned("lrml", "vectors", k=2.5)


@pytest.mark.parametrize(("name", "instead"), [("labels_per_class", "label as many"), ("init", "leave it out")])
def test_settings_of_benchmarks_are_refused_for_own_data(name: str, instead: str) -> None:
    with pytest.raises(InputError, match=f"{name} is for benchmark datasets; .*{instead}"):
        planned("consensus", "vectors", **{name: 1})


def test_the_width_of_a_linear_metric_is_at_most_half_by_default() -> None:
    wide = {"shape": (20,), "encoder": "none"}
    assert planned("affinity-triplets", "vectors", **wide).method_settings.components == 10
    assert planned("affinity-triplets", "vectors", components=3, **wide).method_settings.components == 3
    assert planned("lrml", "vectors", **wide).method_settings.components == 0
    with pytest.raises(InputError, match="n_components must be a whole number from 1 to 20"):
        planned("lrml", "vectors", components=21, **wide)
