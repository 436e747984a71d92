from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from semimetric.core import ranks
from semimetric.encoders import build_encoder
from semimetric.methods import build_method
from semimetric.pipeline.presets import training_settings
from semimetric.training import Trainer, TrainingData, device
from semimetric.training import trainer as trainer_module
from semimetric.training.device import compiler_fault, compiles

CUDA = torch.device("cuda")


def trained(compiled: bool, place: str, stop_gradient: bool = False) -> Trainer:
    """A short training on images of four colours, whose steps are compiled or not."""
    generator = torch.Generator().manual_seed(0)
    classes = torch.arange(160) % 4
    images = torch.randn(160, 3, 16, 16, generator=generator) + torch.randn(4, 3, 1, 1, generator=generator)[classes]
    data = TrainingData(images, torch.where(torch.arange(160) < 16, classes, -1))
    settings = training_settings("consensus", epochs=2, batch_size=32, passes=1, hold_back=0.0, lr=1e-3, compile=True)
    method = build_method("consensus", k=5, naming="step", stop_gradient=stop_gradient, augmentation="none")
    trainer = Trainer(build_encoder("small-cnn", (3, 16, 16), 0), method, data, settings, device=place)
    trainer.step.compiled = compiled
    trainer.step.__post_init__()
    trainer.fit()
    return trainer


def weights_of(trainer: Trainer) -> Tensor:
    parts = (*trainer.encoder.state_dict().values(), *trainer.method.state_dict().values())
    return torch.cat([part.detach().double().cpu().flatten() for part in parts])


def same_with_and_without(place: str, tolerance: float, stop_gradient: bool) -> None:
    from torch._dynamo.utils import counters

    plain = weights_of(trained(False, place, stop_gradient))
    counters.clear()
    compiled = weights_of(trained(True, place, stop_gradient))
    assert counters["stats"]["unique_graphs"] > 0
    assert float((plain - compiled).norm() / plain.norm()) < tolerance


@pytest.mark.parametrize("stop_gradient", [False, True])
@pytest.mark.filterwarnings("ignore")
def test_compiled_steps_train_the_same_network(stop_gradient: bool) -> None:
    fault = compiler_fault(torch.device("cpu"))
    if fault:
        pytest.skip(fault)
    same_with_and_without("cpu", 1e-4, stop_gradient)


def test_a_stopped_gradient_reaches_the_training() -> None:
    assert not torch.equal(*(weights_of(trained(False, "cpu", stop)) for stop in (False, True)))


@pytest.mark.gpu
@pytest.mark.parametrize("stop_gradient", [False, True])
@pytest.mark.filterwarnings("ignore")
def test_compiled_steps_train_the_same_network_on_a_gpu(stop_gradient: bool) -> None:
    assert compiles(True, CUDA, pytest.fail)
    same_with_and_without("cuda", 1e-3, stop_gradient)


@pytest.mark.parametrize(("wanted", "works"), [(True, True), (True, False), (False, True)])
def test_a_trainer_compiles_if_it_is_asked_and_it_works(
    monkeypatch: pytest.MonkeyPatch, wanted: bool, works: bool
) -> None:
    monkeypatch.setattr(trainer_module, "compiles", lambda wanted, device, warn: wanted and works)
    data = TrainingData(torch.randn(40, 6), torch.where(torch.arange(40) < 8, torch.arange(40) % 2, -1))
    settings = training_settings("consensus", epochs=1, batch_size=16, compile=wanted, hold_back=0.0)
    trainer = Trainer(build_encoder("mlp", (6,), 0), build_method("consensus", k=3), data, settings)
    assert trainer.step.compiled == (wanted and works)


@pytest.mark.parametrize(
    ("place", "fault", "size", "compiled", "warned"),
    [
        ("cuda", "", 1, True, []),
        ("cuda", "gcc is missing", 1, False, ["training steps are not compiled: gcc is missing."]),
        ("cuda", "", 2, False, []),
        ("cpu", "", 1, False, []),
    ],
)
def test_where_steps_are_compiled(
    monkeypatch: pytest.MonkeyPatch, place: str, fault: str, size: int, compiled: bool, warned: list[str]
) -> None:
    class World:
        pass

    World.size = size
    monkeypatch.setattr(device, "compiler_fault", lambda place: fault)
    monkeypatch.setattr(ranks, "world", World)
    told: list[str] = []
    assert compiles(True, torch.device(place), told.append) == compiled
    assert told == warned
    assert not compiles(False, torch.device(place), pytest.fail)


def test_what_does_not_compile_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(function: Any) -> Any:
        raise OSError("no compiler")

    monkeypatch.setattr(torch, "compile", refuse)
    assert compiler_fault.__wrapped__(torch.device("cpu")) == "torch.compile does not work here (OSError)"


def test_only_steps_that_can_be_recorded_are_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[Any] = []
    monkeypatch.setattr(torch, "compile", lambda function, **options: compiled.append(function) or function)
    trainer = trained(False, "cpu")
    for capturable in (True, False):
        monkeypatch.setattr(type(trainer.method), "capturable_loss", capturable)
        trainer.step.compiled = True
        trainer.step.__post_init__()
    assert len(compiled) == 1
