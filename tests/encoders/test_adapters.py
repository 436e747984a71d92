from __future__ import annotations

import importlib
import sys
from collections import OrderedDict
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from semimetric.core.errors import InputError
from semimetric.encoders import build_encoder, encode, output_width, wrap
from semimetric.encoders.classifiers import _with_new_names
from semimetric.encoders.weights import load_tensors, read_weights


class TimmStandIn(nn.Module):
    """A few lines with the interface that every model of timm has; not a model of timm."""

    def __init__(self, tokens: bool = False) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, bias=False)
        self.norm = nn.BatchNorm2d(4)
        self.tokens = tokens
        self.reset_classifier(10)

    def reset_classifier(self, num_classes: int) -> None:
        self.head = nn.Linear(4, num_classes) if num_classes else nn.Identity()

    def forward_features(self, images: Tensor) -> Tensor:
        return self.norm(self.stem(images)).relu()

    def forward_head(self, maps: Tensor, pre_logits: bool = False) -> Tensor:
        if self.tokens:
            return self.head(maps.flatten(2).mT)
        rows = maps.mean((2, 3))
        return rows if pre_logits else self.head(rows)

    def forward(self, images: Tensor) -> Tensor:
        return self.forward_head(self.forward_features(images))


def torchvision_stand_in(head: str, layers: nn.Module) -> nn.Sequential:
    """Layers that end in a classifier under one of the names that torchvision gives it."""
    body = nn.Sequential(nn.Conv2d(3, 6, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return nn.Sequential(OrderedDict([("body", body), (head, layers)]))


IMAGES = torch.randn(3, 3, 64, 64, generator=torch.Generator().manual_seed(0))


def stand_in_timm(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, bool]]:
    """Put a stand-in for the package timm in its place; returns what it is asked for."""
    asked: list[tuple[str, bool]] = []

    def create_model(name: str, pretrained: bool) -> nn.Module:
        asked.append((name, pretrained))
        return TimmStandIn()

    module = ModuleType("timm")
    vars(module).update(is_model=lambda name: name == "tiny", create_model=create_model)
    monkeypatch.setitem(sys.modules, "timm", module)
    return asked


def stand_in_torchvision(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, object]]]:
    asked: list[tuple[str, dict[str, object]]] = []

    def get_model(name: str, **given: object) -> nn.Module:
        asked.append((name, given))
        return torchvision_stand_in("fc", nn.Linear(6, 10))

    module = ModuleType("torchvision")
    models = SimpleNamespace(list_models=lambda module: ["googlenet", "tiny"], get_model=get_model)
    vars(module).update(models=models)
    monkeypatch.setitem(sys.modules, "torchvision", module)
    return asked


def test_a_timm_model_loses_its_classifier() -> None:
    model = TimmStandIn().eval()
    expected = model.forward_head(model.forward_features(IMAGES), pre_logits=True)
    encoder = wrap(model).eval()
    assert torch.equal(encoder(IMAGES), expected)
    assert expected.shape == (3, 4)
    assert len(list(encoder.parameters())) == 3


def test_tokens_are_averaged() -> None:
    model = TimmStandIn(tokens=True).eval()
    assert torch.allclose(wrap(model)(IMAGES), model.forward_features(IMAGES).mean((2, 3)), atol=1e-6)


@pytest.mark.parametrize("name", ["fc", "classifier", "heads", "head"])
def test_a_torchvision_model_loses_its_classifier(name: str) -> None:
    model = torchvision_stand_in(name, nn.Linear(6, 10))
    expected = model.body(IMAGES)
    encoder = wrap(model)
    assert torch.equal(encoder(IMAGES), expected)
    assert len(list(encoder.parameters())) == 2


def test_layers_before_the_last_linear_one_stay_and_dropout_before_it_goes() -> None:
    head = nn.Sequential(
        nn.Linear(6, 5), nn.ReLU(), nn.Dropout(), nn.Linear(5, 5), nn.ReLU(), nn.Dropout(), nn.Linear(5, 9)
    )
    model = torchvision_stand_in("classifier", head)
    wrap(model)
    assert [type(layer).__name__ for layer in model.classifier] == ["Linear", "ReLU", "Dropout", "Linear", "ReLU"]
    assert model.classifier[0] is head[0]
    bare = torchvision_stand_in("classifier", nn.Sequential(nn.Dropout(), nn.Linear(6, 9)))
    assert torch.equal(wrap(bare)(IMAGES), bare.body(IMAGES))


def test_a_head_of_convolutions_goes_as_a_whole_and_maps_are_averaged() -> None:
    body = nn.Conv2d(3, 6, 3)
    head = nn.Sequential(nn.Dropout(), nn.Conv2d(6, 10, 1), nn.ReLU())
    encoder = wrap(nn.Sequential(OrderedDict([("body", body), ("classifier", head)])))
    assert torch.equal(encoder(IMAGES), body(IMAGES).mean((2, 3)))


class SqueezeNetStandIn(nn.Module):
    """The head of torchvision's SqueezeNet: a convolution for each class, then a pool that the network counts on."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Conv2d(3, 6, 3)
        self.classifier = nn.Sequential(
            nn.Dropout(), nn.Conv2d(6, 10, 1), nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d((1, 1))
        )

    def forward(self, images: Tensor) -> Tensor:
        return self.classifier(self.features(images)).flatten(1)


def test_a_network_that_classifies_by_a_convolution_keeps_its_pool() -> None:
    model = SqueezeNetStandIn()
    encoder = wrap(model)
    assert torch.allclose(encoder(IMAGES), model.features(IMAGES).mean((2, 3)), atol=1e-6)
    assert sorted(model.state_dict()) == ["features.bias", "features.weight"]


def test_any_module_is_used_as_it_is() -> None:
    network = nn.Sequential(nn.Flatten(), nn.Linear(12, 5))
    inputs = torch.randn(2, 3, 4)
    assert torch.equal(wrap(network)(inputs), network(inputs))
    assert output_width(wrap(network), inputs) == 5


def test_outputs_that_are_no_features_are_refused() -> None:
    class Pair(nn.Module):
        def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
            return images, images

    with pytest.raises(InputError, match=r"must return rows \(N, d\).*got tuple"):
        wrap(Pair())(IMAGES)
    with pytest.raises(InputError, match=r"must return rows \(N, d\).*got \(3,\)"):
        wrap(nn.Flatten(0))(torch.zeros(3))


@pytest.mark.parametrize("library", ["timm", "torchvision"])
def test_a_missing_package_is_named_with_its_extra(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(InputError, match=rf"needs the package {library}.*pip install 'semimetric\[vision\]'"):
        build_encoder(f"{library}:resnet18", (3, 64, 64), 0)


def test_models_of_timm_by_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked = stand_in_timm(monkeypatch)
    before = torch.get_rng_state()
    first, second, other = (build_encoder("timm:tiny", (3, 64, 64), seed) for seed in (1, 1, 2))
    assert torch.equal(before, torch.get_rng_state())
    assert asked == [("tiny", False)] * 3
    assert torch.equal(encode(first, IMAGES), encode(second, IMAGES))
    assert not torch.equal(encode(first, IMAGES), encode(other, IMAGES))
    torch.save(TimmStandIn().state_dict() | {"stem.weight": first.network.stem.weight.detach()}, tmp_path / "a.pth")
    loaded = build_encoder("timm:tiny", (3, 64, 64), 3, weights=tmp_path / "a.pth")
    assert torch.equal(encode(loaded, IMAGES), encode(first, IMAGES))
    with pytest.raises(InputError, match=r"'timm:huge' is not a model of timm\. timm\.list_models\(\)"):
        build_encoder("timm:huge", (3, 64, 64), 0)


def test_a_model_of_timm_gets_images_by_its_own_statistics(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    statistics: dict[str, object] = {}

    def create_model(name: str, pretrained: bool) -> nn.Module:
        model = TimmStandIn()
        model.pretrained_cfg = statistics
        return model

    stand_in_timm(monkeypatch)
    monkeypatch.setattr(sys.modules["timm"], "create_model", create_model)
    model = TimmStandIn().eval()
    save_file(model.state_dict(), tmp_path / "weights.safetensors")
    pixels = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    mean, std = (torch.tensor(v)[:, None, None] for v in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    for theirs, spread in (((0.5, 0.4, 0.3), (0.5, 0.6, 0.7)), ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))):
        statistics |= {"mean": theirs, "std": spread}
        encoder = build_encoder("timm:tiny", (3, 64, 64), 0, weights=tmp_path / "weights.safetensors").eval()
        given = (pixels - torch.tensor(theirs)[:, None, None]) / torch.tensor(spread)[:, None, None]
        expected = model.forward_features(given).mean((2, 3))
        torch.testing.assert_close(encoder((pixels - mean) / std), expected, atol=1e-5, rtol=1e-4)
        assert sorted(encoder.state_dict()) == sorted(
            f"network.{name}" for name in model.state_dict() if not name.startswith("head")
        )
    assert torch.equal(wrap(model)(pixels), model.forward_features(pixels).mean((2, 3)))


def test_models_of_torchvision_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = stand_in_torchvision(monkeypatch)
    encoder = build_encoder("torchvision:tiny", (3, 64, 64), 0)
    assert encoder(IMAGES).shape == (3, 6)
    build_encoder("torchvision:googlenet", (3, 64, 64), 0)
    extra = {"aux_logits": False, "init_weights": True, "transform_input": True}
    assert asked == [("tiny", {"weights": None}), ("googlenet", {"weights": None} | extra)]
    with pytest.raises(InputError, match="'torchvision:fcos' is not a classifier of torchvision"):
        build_encoder("torchvision:fcos", (3, 64, 64), 0)


def test_names_and_shapes_are_checked_before_any_import() -> None:
    known = r"one of paper-mnist.*googlenet-rmac.*, timm:NAME, torchvision:NAME, transformers:NAME, got 'keras:x'"
    with pytest.raises(InputError, match=known):
        build_encoder("keras:x", (3, 64, 64), 0)
    with pytest.raises(InputError, match="'timm:tiny' needs colour images"):
        build_encoder("timm:tiny", (1, 28, 28), 0)


def test_weights_may_lack_counts_of_batches_and_hold_a_classifier() -> None:
    source, target = TimmStandIn(), wrap(TimmStandIn())
    tensors = {name: tensor for name, tensor in source.state_dict().items() if "num_batches" not in name}
    load_tensors(target.network, tensors, "here", ("head.",))
    assert torch.equal(target.network.stem.weight, source.stem.weight)
    with pytest.raises(InputError, match=r"in here lack 1 of the network's tensors, first 'norm.running_var'"):
        load_tensors(target.network, {n: t for n, t in tensors.items() if n != "norm.running_var"}, "here")
    with pytest.raises(InputError, match=r"in here do not fit the network: .*stem.weight.* Use weights"):
        load_tensors(target.network, tensors | {"stem.weight": torch.zeros(4, 3, 5, 5)}, "here")
    with pytest.raises(InputError, match=r"in here have 2 tensors that the network has not, first 'head.weight'"):
        load_tensors(target.network, tensors, "here")


@pytest.mark.parametrize("library", ["timm", "torchvision"])
def test_weights_of_a_deeper_network_are_refused(library: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stand_in_timm(monkeypatch)
    stand_in_torchvision(monkeypatch)
    model = TimmStandIn() if library == "timm" else torchvision_stand_in("fc", nn.Linear(6, 20))
    save_file(model.state_dict(), tmp_path / "same.safetensors")
    build_encoder(f"{library}:tiny", (3, 64, 64), 0, weights=tmp_path / "same.safetensors")
    deeper = model.state_dict() | {"layer9.weight": torch.zeros(2), "layer9.bias": torch.zeros(2)}
    save_file(deeper, tmp_path / "deeper.safetensors")
    with pytest.raises(InputError, match=r"have 2 tensors that the network has not, first 'layer9\.(weight|bias)'\. "):
        build_encoder(f"{library}:tiny", (3, 64, 64), 0, weights=tmp_path / "deeper.safetensors")


def test_auxiliary_heads_are_passed_over_where_the_network_had_some(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stand_in_torchvision(monkeypatch)
    model = torchvision_stand_in("fc", nn.Linear(6, 10))
    path = tmp_path / "weights.safetensors"
    save_file(model.state_dict() | {"aux2.fc1.weight": torch.zeros(2)}, path)
    encoder = build_encoder("torchvision:googlenet", (3, 64, 64), 0, weights=path)
    assert torch.equal(encoder(IMAGES), model.body(IMAGES))
    with pytest.raises(InputError, match=r"first 'aux2.fc1.weight'"):
        build_encoder("torchvision:tiny", (3, 64, 64), 0, weights=path)


class MNASNet(nn.Sequential):
    """Named like torchvision's network, which refuses tensors that tell no version."""

    _version = 2

    def _load_from_state_dict(self, tensors, prefix, metadata, *rest) -> None:
        if metadata.get("version") not in (1, 2):
            raise ValueError("no version")
        super()._load_from_state_dict(tensors, prefix, metadata, *rest)


def test_a_network_that_asks_for_a_version_loads_tensors_without_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stand_in_torchvision(monkeypatch)
    model = MNASNet(OrderedDict(torchvision_stand_in("classifier", nn.Linear(6, 10)).named_children()))
    vars(sys.modules["torchvision"].models)["get_model"] = lambda name, **given: MNASNet(*model.children())
    named = {str(place): layer for place, layer in enumerate(model.children())}
    save_file(nn.ModuleDict(named).state_dict(), tmp_path / "mnasnet.safetensors")
    with pytest.raises(ValueError, match="no version"):
        MNASNet(*model.children()).load_state_dict(dict(nn.ModuleDict(named).state_dict()))
    encoder = build_encoder("torchvision:tiny", (3, 64, 64), 0, weights=tmp_path / "mnasnet.safetensors")
    encoder.load_state_dict(dict(encoder.state_dict()))


def test_densenet_may_have_the_names_that_torchvision_publishes() -> None:
    value = torch.zeros(1)
    published = {
        "features.denseblock1.denselayer12.norm.1.weight": value,
        "features.denseblock1.denselayer12.conv.2.weight": value,
        "features.norm5.bias": value,
    }
    assert list(_with_new_names(published)) == [
        "features.denseblock1.denselayer12.norm1.weight",
        "features.denseblock1.denselayer12.conv2.weight",
        "features.norm5.bias",
    ]
    others = {"layer1.0.norm.1.weight": value, "norm1.bias": value}
    assert _with_new_names(others) is others


@pytest.mark.parametrize("suffix", [".npz", ".safetensors", ".pth", ".pt"])
def test_every_kind_of_file_is_read(tmp_path: Path, suffix: str) -> None:
    tensors = {"a.weight": torch.randn(2, 3), "count": torch.tensor(4)}
    path = tmp_path / f"weights{suffix}"
    if suffix == ".npz":
        np.savez(path, **{name: tensor.numpy() for name, tensor in tensors.items()})
    elif suffix == ".safetensors":
        save_file(tensors, path)
    else:
        torch.save(tensors, path)
    read = read_weights(str(path))
    assert sorted(read) == sorted(tensors)
    assert all(torch.equal(read[name], tensor) for name, tensor in tensors.items())
    path.write_bytes(b"not weights")
    with pytest.raises(InputError, match="cannot be read"):
        read_weights(path)


def test_files_that_are_no_weights_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"ends in .npz, .safetensors, .pth, .pt, got .*x.h5"):
        read_weights(tmp_path / "x.h5")
    with pytest.raises(InputError, match=r"x.npz does not exist"):
        read_weights(tmp_path / "x.npz")
    torch.save({"state_dict": {"a": torch.zeros(1)}, "epoch": 3}, tmp_path / "checkpoint.pth")
    with pytest.raises(InputError, match=r"must be tensors by name.*got dict"):
        read_weights(tmp_path / "checkpoint.pth")
    torch.save(nn.Linear(2, 2), tmp_path / "module.pth")
    with pytest.raises(InputError, match="holds more than tensors"):
        read_weights(tmp_path / "module.pth")
    np.savez(tmp_path / "nan.npz", good=np.ones(2), bad=np.array([1.0, np.nan]))
    with pytest.raises(InputError, match="NaN or infinite values, first in 'bad'"):
        read_weights(tmp_path / "nan.npz")
    np.savez(tmp_path / "objects.npz", a=np.array([{}], dtype=object))
    with pytest.raises(InputError, match="cannot be read"):
        read_weights(tmp_path / "objects.npz")


@pytest.mark.parametrize(("name", "width"), [("timm:resnet18", 512), ("timm:mobilenetv3_small_050", 1024)])
def test_real_models_of_timm(name: str, width: int) -> None:
    pytest.importorskip("timm")
    assert output_width(build_encoder(name, (3, 64, 64), 0), IMAGES) == width


@pytest.mark.parametrize(
    ("name", "width"),
    [
        ("resnet18", 512),
        ("squeezenet1_1", 512),
        ("mobilenet_v3_small", 1024),
        ("convnext_tiny", 768),
        ("googlenet", 1024),
    ],
)
def test_real_models_of_torchvision(name: str, width: int) -> None:
    pytest.importorskip("torchvision")
    encoder = build_encoder(f"torchvision:{name}", (3, 64, 64), 0)
    assert output_width(encoder, IMAGES) == width
    assert encoder.train()(IMAGES).shape == (3, width)


def test_our_googlenet_is_torchvisions(tmp_path: Path) -> None:
    pytest.importorskip("torchvision")
    get_model = importlib.import_module("torchvision.models").get_model
    torch.manual_seed(0)
    theirs = get_model("googlenet", weights=None, aux_logits=True, init_weights=True, transform_input=True)
    theirs.train()(torch.randn(4, 3, 96, 96))  # batch normalisation has seen something
    torch.save(theirs.state_dict(), tmp_path / "googlenet.pth")
    ours = build_encoder("googlenet", (3, 64, 64), 0, weights=tmp_path / "googlenet.pth")
    assert torch.allclose(encode(ours, IMAGES), encode(wrap(theirs), IMAGES), atol=1e-5)
