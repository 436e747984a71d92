"""Batch normalisation of a pretrained network keeps its statistics where that is asked for."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import semimetric as sm
from semimetric.encoders.features import training_mode
from semimetric.pipeline.presets import own_values, preset_values
from semimetric.training.pretraining import pretrain
from semimetric.training.settings import PretrainSettings


def network() -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.1), nn.ReLU(), nn.Linear(8, 4))


def test_batch_normalisation_alone_stays_in_evaluation_mode() -> None:
    encoder = network()
    training_mode(encoder, freeze_norm=True)
    assert [module.training for module in encoder] == [True, False, True, True, True]
    training_mode(encoder)
    assert all(module.training for module in encoder)


def test_frozen_statistics_normalise_a_batch_and_gains_are_trained() -> None:
    norm = nn.BatchNorm1d(3)
    norm.running_mean.copy_(torch.tensor([1.0, 2.0, 3.0]))
    norm.running_var.copy_(torch.tensor([4.0, 9.0, 16.0]))
    before = {name: tensor.clone() for name, tensor in norm.state_dict().items()}
    training_mode(nn.Sequential(norm), freeze_norm=True)
    rows = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    found = norm(rows)
    expected = (rows - before["running_mean"]) / (before["running_var"] + norm.eps).sqrt()
    assert torch.allclose(found, expected, atol=1e-6)
    found.square().sum().backward()
    assert bool((norm.weight.grad != 0).all())
    assert all(torch.equal(tensor, before[name]) for name, tensor in norm.state_dict().items())


@pytest.mark.parametrize("freeze", [False, True])
def test_training_moves_the_statistics_unless_they_are_frozen(freeze: bool) -> None:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(40, 6, generator=generator) + 2
    labels = torch.where(torch.arange(40) < 12, torch.arange(40) % 3, -1)
    encoder = network()
    before = encoder[1].running_mean.clone(), encoder[1].weight.detach().clone()
    settings = sm.training_settings("consensus", epochs=2, batch_size=16, hold_back=0.0, freeze_norm=freeze)
    trainer = sm.Trainer(encoder, sm.build_method("consensus", k=3), sm.TrainingData(inputs, labels), settings)
    found = trainer.fit().encoder[1]
    assert torch.equal(found.running_mean, before[0]) == freeze
    assert not torch.equal(found.weight, before[1])


@pytest.mark.parametrize("freeze", [False, True])
def test_softmax_training_keeps_frozen_statistics_too(freeze: bool) -> None:
    inputs = torch.randn(12, 6, generator=torch.Generator().manual_seed(1)) + 2
    encoder = network()
    before = encoder[1].running_mean.clone(), encoder[0].weight.detach().clone()
    pretrain(encoder, inputs, torch.arange(12) % 3, PretrainSettings(pretrain_epochs=1), 0, freeze_norm=freeze)
    assert torch.equal(encoder[1].running_mean, before[0]) == freeze
    assert not torch.equal(encoder[0].weight, before[1])


def test_pretrained_networks_are_fine_tuned_with_frozen_statistics() -> None:
    assert own_values("consensus", "pretrained")["freeze_norm"] is True
    assert "freeze_norm" not in own_values("consensus", "images")
    assert preset_values("default", "cub200", "consensus")["freeze_norm"] is True
