"""Real models of transformers, timm and torchvision, with random weights, from fit to search; where installed."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor, nn

import semimetric as sm
from semimetric.core.errors import InputError
from semimetric.encoders import build_encoder

pytestmark = pytest.mark.slow

TRANSFORMERS = {
    "vit": {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 96},
    "dinov2": {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 3},
    "resnet": {"embedding_size": 16, "hidden_sizes": [16, 32], "depths": [1, 1]},
    "convnext": {"hidden_sizes": [16, 32], "depths": [1, 1], "num_stages": 2},
}
"""Kinds of models, and settings that make them small."""

CLASSIFIERS = {
    "torchvision:mobilenet_v2": 1280,
    "torchvision:mobilenet_v3_small": 1024,
    "torchvision:efficientnet_b0": 1280,
    "torchvision:convnext_tiny": 768,
    "torchvision:squeezenet1_1": 512,
    "torchvision:densenet121": 1024,
    "torchvision:mnasnet0_5": 1280,
    "timm:mobilenetv3_small_050": 1024,
    "timm:efficientnet_lite0": 1280,
    "timm:vit_tiny_patch16_224": 192,
    "timm:resnet10t": 512,
    "timm:convnext_atto": 320,
}
"""One classifier of each family, and the width of its features."""

SHAPE = (3, 224, 224)
PIXELS = torch.rand(2, *SHAPE, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def photographs(tmp_path: Path) -> list[Path]:
    """Ten squares of two colours each, with noise."""
    draws = np.random.default_rng(0)
    paths = []
    for number in range(20):
        colour = np.array([200, 40, 40]) if number % 2 else np.array([40, 40, 200])
        pixels = np.clip(colour + draws.normal(0, 20, (72, 80, 3)), 0, 255).astype(np.uint8)
        paths.append(tmp_path / f"{number:02d}.png")
        Image.fromarray(pixels).save(paths[-1])
    return paths


def normalised(mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    return (PIXELS - torch.tensor(mean)[:, None, None]) / torch.tensor(std)[:, None, None]


IMAGES = normalised((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


def network_of(name: str) -> nn.Module:
    """The library's own model, whose batch normalisation has seen noise; else deep ones answer all images alike."""
    library, _, model = name.partition(":")
    module = pytest.importorskip(library, reason=f"{library} is not installed")
    create = module.create_model if library == "timm" else module.models.get_model
    network: nn.Module = create(model)
    for layer in network.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.momentum = 1.0
    with torch.no_grad():
        network.train()(torch.randn(8, 3, 64, 64) if "vit" not in model else IMAGES)
    return network.eval()


@torch.no_grad()
def own_features(network: nn.Module) -> Tensor:
    """What the library itself gives to its classifier: timm's way, or the input of torchvision's last layer."""
    if hasattr(network, "forward_head"):
        images = normalised(network.pretrained_cfg["mean"], network.pretrained_cfg["std"])
        return network.forward_head(network.forward_features(images), pre_logits=True)
    seen: list[Tensor] = []
    layer = [part for part in network.modules() if isinstance(part, nn.Linear)] or [network.classifier[1]]
    handle = layer[-1].register_forward_pre_hook(lambda part, given: seen.append(given[0]))
    network(IMAGES)
    handle.remove()
    return seen[0].mean((2, 3)) if seen[0].ndim == 4 else seen[0]


def check(encoder: str, weights: Path, photographs: list[Path], tmp_path: Path, epochs: int = 2) -> None:
    """A fit tells the colours apart, and a saved model embeds as before."""
    labels = np.array([number % 2 if number < 8 else -1 for number in range(20)])
    model = sm.SemiMetric(encoder=encoder, weights=weights, epochs=epochs, random_state=0, device="cpu")
    model.fit(photographs, labels)
    assert list(model.predict(photographs)) == [number % 2 for number in range(20)]
    sm.save(model, tmp_path / "run")
    again = sm.load(tmp_path / "run").transform(photographs)
    np.testing.assert_allclose(again, model.transform(photographs), atol=1e-5)


@pytest.mark.parametrize("kind", TRANSFORMERS)
def test_models_of_transformers(
    kind: str, photographs: list[Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(kind, **TRANSFORMERS[kind])
    folder = tmp_path / kind
    transformers.AutoModel.from_config(config).save_pretrained(folder)
    capfd.readouterr()
    check(f"transformers:someone/{kind}", folder / "model.safetensors", photographs, tmp_path)
    assert "Loading weights" not in capfd.readouterr().err
    assert transformers.utils.logging.is_progress_bar_enabled()


@pytest.mark.parametrize("library", ["timm", "torchvision"])
def test_models_of_timm_and_torchvision(library: str, photographs: list[Path], tmp_path: Path) -> None:
    module = pytest.importorskip(library, reason=f"{library} is not installed")
    torch.manual_seed(0)
    network = module.create_model("resnet18") if library == "timm" else module.models.resnet18()
    save_file(network.state_dict(), tmp_path / "resnet18.safetensors")
    check(f"{library}:resnet18", tmp_path / "resnet18.safetensors", photographs, tmp_path)


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_features_are_those_of_the_library(name: str, tmp_path: Path) -> None:
    network = network_of(name)
    library, path = name.partition(":")[0], tmp_path / ("a.safetensors" if name.startswith("timm") else "a.pth")
    write = save_file if library == "timm" else torch.save  # as each of them publishes its weights
    write(network.state_dict(), path)
    encoder = build_encoder(name, SHAPE, 0, weights=path).eval()
    with torch.no_grad():
        features = encoder(IMAGES)
    assert features.shape == (2, CLASSIFIERS[name])
    torch.testing.assert_close(features, own_features(network), rtol=1e-4, atol=1e-4)
    again = build_encoder(name, SHAPE, 1)
    again.load_state_dict(dict(encoder.state_dict()))  # as a run has them: without the versions of modules
    assert torch.equal(again.network.state_dict()[next(iter(network.state_dict()))], next(iter(network.parameters())))
    write(dict(network_of(f"{library}:resnet18").state_dict()), path)
    with pytest.raises(InputError, match=r"[Uu]se weights of the same network"):
        build_encoder(name, SHAPE, 0, weights=path)


@pytest.mark.parametrize("name", ["torchvision:mobilenet_v2", "torchvision:mnasnet0_5", "timm:mobilenetv3_small_050"])
def test_small_classifiers_from_fit_to_search(name: str, photographs: list[Path], tmp_path: Path) -> None:
    save_file(network_of(name).state_dict(), tmp_path / "weights.safetensors")
    check(name, tmp_path / "weights.safetensors", photographs, tmp_path, epochs=20)  # two name one class alone


def test_densenet_is_read_by_the_names_that_torchvision_publishes(tmp_path: Path) -> None:
    network = network_of("torchvision:densenet121")
    old = {re.sub(r"(layer\d+\.(?:norm|conv))([12])", r"\1.\2", key): t for key, t in network.state_dict().items()}
    assert "features.denseblock1.denselayer1.norm.1.weight" in old
    torch.save(old, tmp_path / "densenet121.pth")
    encoder = build_encoder("torchvision:densenet121", SHAPE, 0, weights=tmp_path / "densenet121.pth").eval()
    with torch.no_grad():
        torch.testing.assert_close(encoder(IMAGES), own_features(network), rtol=1e-4, atol=1e-4)


def test_vision_transformers_are_read_by_the_names_that_torchvision_publishes(tmp_path: Path) -> None:
    pytest.importorskip("torchvision", reason="torchvision is not installed")
    network = importlib.import_module("torchvision.models").get_model("vit_b_32", weights=None).eval()
    renamed = {"mlp.0.": "mlp.linear_1.", "mlp.3.": "mlp.linear_2."}
    old = {}
    for key, tensor in network.state_dict().items():
        for present, before in renamed.items():
            key = key.replace(present, before)
        old[key] = tensor
    assert "encoder.layers.encoder_layer_0.mlp.linear_1.weight" in old
    torch.save(old, tmp_path / "vit.pth")
    encoder = build_encoder("torchvision:vit_b_32", SHAPE, 0, weights=tmp_path / "vit.pth").eval()
    with torch.no_grad():
        torch.testing.assert_close(encoder(IMAGES), own_features(network), rtol=1e-4, atol=1e-4)
