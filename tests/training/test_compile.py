from __future__ import annotations

import pytest
import torch
from torch import Tensor

from semimetric.core import ranks
from semimetric.encoders import build_encoder
from semimetric.methods import build_method
from semimetric.pipeline.presets import training_settings
from semimetric.training import Trainer, TrainingData, device
from semimetric.training.device import why_not_compiled

CUDA = torch.device("cuda")


def trained(compiled: bool, place: str) -> Trainer:
    """A short training on images of four colours, whose steps are compiled or not."""
    generator = torch.Generator().manual_seed(0)
    classes = torch.arange(160) % 4
    images = torch.randn(160, 3, 16, 16, generator=generator) + torch.randn(4, 3, 1, 1, generator=generator)[classes]
    data = TrainingData(images, torch.where(torch.arange(160) < 16, classes, -1))
    settings = training_settings("consensus", epochs=2, batch_size=32, passes=1, hold_back=0.0, lr=1e-3, compile=True)
    method = build_method("consensus", k=5, naming="step", augmentation="none")
    trainer = Trainer(build_encoder("small-cnn", (3, 16, 16), 0), method, data, settings, device=place)
    trainer.step.compiled = compiled
    trainer.step.__post_init__()
    trainer.fit()
    return trainer


def weights_of(trainer: Trainer) -> Tensor:
    parts = (*trainer.encoder.state_dict().values(), *trainer.method.state_dict().values())
    return torch.cat([part.detach().double().cpu().flatten() for part in parts])


def same_with_and_without(place: str, tolerance: float) -> None:
    from torch._dynamo.utils import counters

    plain = weights_of(trained(False, place))
    counters.clear()
    compiled = weights_of(trained(True, place))
    assert counters["stats"]["unique_graphs"] > 0
    assert float((plain - compiled).norm() / plain.norm()) < tolerance


@pytest.fixture
def compiler() -> None:
    """What torch.compile needs on a CPU: a C++ compiler, and headers."""
    try:
        torch.compile(torch.sin)(torch.zeros(3))
    except Exception as error:  # of many kinds, by what is missing
        pytest.skip(f"torch.compile does not work here: {type(error).__name__}")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("compiler")
def test_compiled_steps_train_the_same_network() -> None:
    same_with_and_without("cpu", 1e-4)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore")
def test_compiled_steps_train_the_same_network_on_a_gpu() -> None:
    assert not why_not_compiled(CUDA)
    same_with_and_without("cuda", 1e-3)


def test_on_a_cpu_the_setting_has_no_effect() -> None:
    assert why_not_compiled(torch.device("cpu")) == "it is for GPUs"
    generator = torch.Generator().manual_seed(0)
    labels = torch.where(torch.arange(40) < 8, torch.arange(40) % 2, -1)
    data = TrainingData(torch.randn(40, 6, generator=generator), labels)
    settings = training_settings("consensus", epochs=1, batch_size=16, compile=True, hold_back=0.0)
    trainer = Trainer(build_encoder("mlp", (6,), 0), build_method("consensus", k=3), data, settings)
    assert trainer.settings.compile
    assert not trainer.step.compiled


@pytest.mark.parametrize(
    ("triton", "compiler", "size", "why"),
    [
        (True, "gcc", 1, ""),
        (False, "gcc", 1, "Triton is not installed"),
        (True, None, 1, "there is no C compiler"),
        (True, "gcc", 2, "several processes train together"),
    ],
)
def test_what_stands_in_the_way_on_a_gpu(monkeypatch, triton: bool, compiler: str | None, size: int, why: str) -> None:
    class World:
        pass

    World.size = size
    monkeypatch.setattr(device.importlib.util, "find_spec", lambda name: object() if triton else None)
    monkeypatch.setattr(device.shutil, "which", lambda name: compiler)
    monkeypatch.setattr(ranks, "world", World)
    assert why_not_compiled(CUDA) == why
