"""Real models of transformers, timm and torchvision, with random weights, from fit to search; where installed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

import semimetric as sm

pytestmark = pytest.mark.slow

TRANSFORMERS = {
    "vit": {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 96},
    "dinov2": {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 3},
    "resnet": {"embedding_size": 16, "hidden_sizes": [16, 32], "depths": [1, 1]},
    "convnext": {"hidden_sizes": [16, 32], "depths": [1, 1], "num_stages": 2},
}
"""Kinds of models, and settings that make them small."""


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


def check(encoder: str, weights: Path, photographs: list[Path], tmp_path: Path) -> None:
    """A fit tells the colours apart, and a saved model embeds as before."""
    labels = np.array([number % 2 if number < 8 else -1 for number in range(20)])
    model = sm.SemiMetric(encoder=encoder, weights=weights, epochs=2, random_state=0, device="cpu")
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
