from __future__ import annotations

import pytest
import torch
from torch import nn

from semimetric.core.errors import DivergedError, InputError
from semimetric.training import PretrainSettings, pretrain


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Dropout(0.1), nn.Linear(24, 8))


def test_it_learns_the_labels_and_repeats(make_clusters) -> None:
    points, classes = make_clusters(0, 60, 12, 3)
    settings = PretrainSettings(pretrain_epochs=30, pretrain_lr=0.1, pretrain_batch_size=20)
    first, second = network(), network()
    before = torch.get_rng_state()
    loss = pretrain(first, points, classes + 5, settings, seed=1)
    assert torch.equal(before, torch.get_rng_state())
    assert loss < 0.5 < torch.tensor(3.0).log()
    assert pretrain(second, points, classes + 5, settings, seed=1) == loss
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))


def test_divergence_names_the_flag(make_clusters) -> None:
    points, classes = make_clusters(0, 60, 12, 3)
    with pytest.raises(DivergedError, match="--pretrain-lr"):
        pretrain(network(), points, classes, PretrainSettings(pretrain_epochs=20, pretrain_lr=1e9), seed=0)


def test_vectors_cannot_be_mirrored(make_clusters) -> None:
    points, classes = make_clusters(0, 60, 12, 3)
    with pytest.raises(InputError, match="mirrors images"):
        pretrain(network(), points, classes, PretrainSettings(pretrain_epochs=1, pretrain_flip=True), seed=0)


def test_mirroring_keeps_every_image_or_its_mirror_image() -> None:
    from semimetric.training.pretraining import _flip_some

    images = torch.arange(200.0).reshape(50, 1, 2, 2)
    flipped = _flip_some(images, torch.Generator().manual_seed(0))
    mirrored = (flipped == images.flip(3)).flatten(1).all(1)
    assert (mirrored | (flipped == images).flatten(1).all(1)).all()
    assert 10 < int(mirrored.sum()) < 40


@pytest.mark.parametrize(
    "changes", [{"pretrain_epochs": -1}, {"pretrain_lr": float("inf")}, {"pretrain_weight_decay": -1.0}]
)
def test_bad_settings_are_named(changes: dict) -> None:
    with pytest.raises(InputError, match=next(iter(changes))):
        PretrainSettings(**changes)
