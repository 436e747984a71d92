"""Quarter turns of images: which views there are, what is told apart, and what is refused."""

from __future__ import annotations

import math

import pytest
import torch
from helpers.draws import draws
from helpers.views import pictures, seeded
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from semimetric.core.errors import InputError
from semimetric.data import augmentation_for
from semimetric.encoders import encode, unit_features
from semimetric.methods import rotation
from semimetric.methods.baseline import head_logits, unit_points
from semimetric.methods.rotation import Rotation, RotationSettings
from semimetric.metric import Metric
from semimetric.training import Trainer, TrainingData, TrainingSettings

WIDTH = 8


def prepared(inputs: Tensor, width: int = WIDTH, **values) -> Rotation:
    method = Rotation(RotationSettings(**values))
    method.on_fit_begin(inputs, torch.full((len(inputs),), -1), width, seeded())
    return method


def features_of(count: int, seed: int = 0) -> Tensor:
    return unit_features(pictures(count, WIDTH, seed=seed, dtype=torch.float32))


@given(st.integers(1, 5), st.sampled_from([1, 3]), st.integers(1, 7), st.integers(0, 99))
@draws(30)
def test_views_are_the_four_turns_one_after_the_other(count: int, channels: int, side: int, seed: int) -> None:
    inputs = pictures(count, channels, side, side, seed=seed)
    upright, quarter, half, three = prepared(inputs).views(inputs).chunk(4)
    assert torch.equal(upright, inputs)
    assert torch.equal(quarter, torch.rot90(inputs, 1, (2, 3)))
    assert torch.equal(half, inputs.flip(2).flip(3))
    assert torch.equal(three, torch.rot90(inputs, 3, (2, 3)))


def test_four_successive_quarter_turns_are_none() -> None:
    inputs = pictures(4, 3, 6, 6)
    method = prepared(inputs)
    images = inputs
    for turns in range(1, 5):
        images = method.views(images).chunk(4)[1]
        assert torch.equal(images, inputs) == (turns == 4)


def test_every_turn_is_as_frequent_as_the_others_in_every_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[torch.Tensor] = []
    compute = rotation.cross_entropy

    def keep(logits: Tensor, targets: Tensor) -> Tensor:
        told.append(targets)
        return compute(logits, targets)

    monkeypatch.setattr(rotation, "cross_entropy", keep)
    method = prepared(pictures(30, 1, 4, 4))
    constraints = method.constraints(features_of(30), torch.full((30,), -1))
    batches = list(constraints.minibatches(7, seeded()))
    assert len(batches) == 4
    for batch in batches:
        method.loss(Metric.identity(WIDTH), features_of(28), batch)
        assert torch.equal(told[-1], torch.arange(4).repeat_interleave(7))


def test_a_view_of_an_image_is_made_before_it_is_turned() -> None:
    inputs = pictures(10, 1, 14, 14)
    method = prepared(inputs, augmentation="auto")
    assert method.make_views.augmentations == (augmentation_for("digits", "weak"),)
    upright, *turned = method.views(inputs).chunk(4)
    assert not torch.equal(upright, inputs)
    for turns, images in enumerate(turned, start=1):
        assert torch.equal(torch.rot90(images, -turns, (2, 3)), upright)


def test_a_new_head_takes_all_turns_for_equally_likely() -> None:
    method = prepared(pictures(50, 1, 4, 4))
    constraints = method.constraints(features_of(50), torch.full((50,), -1))
    loss = float(method.loss(Metric.identity(WIDTH), features_of(200), constraints).detach())
    assert loss == pytest.approx(math.log(4), rel=0.05)


def test_loss_is_the_mean_surprise_at_the_turns() -> None:
    method = prepared(pictures(5, 1, 4, 4), components=3)
    assert method.head.weight.shape == (4, 3)
    nn.init.normal_(method.head.weight, generator=seeded(1))
    nn.init.normal_(method.head.bias, generator=seeded(2))
    method.requires_grad_(False)
    metric, features = method.initial_metric(WIDTH, seeded(3)), features_of(20)
    points = features.double() @ metric.factor.double()
    surprises = []
    for row, point in enumerate(points):
        logits = 16 * point / point.norm() @ method.head.weight.double().T + method.head.bias.double()
        surprises.append(float(logits.exp().sum().log() - logits[row // 5]))
    constraints = method.constraints(features[:5], torch.full((5,), -1))
    assert float(method.loss(metric, features, constraints)) == pytest.approx(sum(surprises) / 20, rel=1e-5)


@pytest.mark.parametrize("certainty", [0.01, 1.0, 30.0])
def test_images_that_look_the_same_in_all_turns_cannot_be_told(certainty: float) -> None:
    """Whatever the head says of four equal views, it is right of one of them: log 4 at the least."""
    images = torch.arange(6.0)[:, None, None, None].expand(6, 1, 4, 4)
    method = prepared(images)
    nn.init.normal_(method.head.weight, std=certainty, generator=seeded(1))
    features = unit_features(method.views(images).flatten(1)[:, :WIDTH] + 1.0).requires_grad_()
    loss = method.loss(Metric.identity(WIDTH), features, method.constraints(features[:6], torch.empty(0)))
    loss.backward()
    assert math.log(4) - 1e-6 <= float(loss.detach()) < math.inf
    assert features.grad is not None
    assert torch.isfinite(features.grad).all()


def test_a_dead_network_has_a_loss_and_a_gradient() -> None:
    method = prepared(pictures(6, 1, 4, 4))
    features = torch.zeros(24, WIDTH, requires_grad=True)
    loss = method.loss(Metric.identity(WIDTH), features, method.constraints(features[:6], torch.empty(0)))
    loss.backward()
    assert float(loss.detach()) == pytest.approx(math.log(4))
    assert features.grad is not None
    assert torch.isfinite(features.grad).all()


def test_statistics_say_how_many_are_taken_for_upright() -> None:
    method = prepared(pictures(4, 1, 4, 4))
    with torch.no_grad():
        method.head.weight.copy_(torch.eye(4, WIDTH))
    features = torch.eye(WIDTH)[[0, 0, 0, 2]]  # the last one looks turned by 180 degrees
    constraints = method.constraints(features, torch.full((4,), -1))
    assert method.statistics(Metric.identity(WIDTH), features, constraints) == {"told_upright": 0.75}


def lamps(count: int, seed: int) -> Tensor:
    """Images (N, 1, 10, 10) that grow brighter upwards, with a bar in some row of the upper half, in noise."""
    generator = seeded(seed)
    slope = torch.linspace(1, -1, 10)[:, None] * torch.rand(count, 1, 1, 1, generator=generator)
    images = slope + 0.3 * torch.randn(count, 1, 10, 10, generator=generator)
    images[torch.arange(count), 0, torch.randint(1, 4, (count,), generator=generator)] += 1.5
    return images


def trainer_of(images: Tensor, epochs: int, **values) -> Trainer:
    torch.manual_seed(0)
    encoder = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(128, 16),
    )
    training = TrainingSettings(
        epochs=epochs, batch_size=20, lr=1e-2, partition_size=80, epochs_per_partition=1, selection="last"
    )
    data = TrainingData(images, torch.full((len(images),), -1))
    return Trainer(encoder, Rotation(RotationSettings(**values)), data, training)


def share_told(trainer: Trainer, images: Tensor) -> float:
    """How often the head tells by how much images were turned."""
    turned = torch.cat([torch.rot90(images, turns, (2, 3)) for turns in range(4)])
    points = unit_points(trainer.metric, encode(trainer.encoder, turned))
    told = head_logits(trainer.method.head, points).argmax(1)
    return float((told == torch.arange(4).repeat_interleave(len(images))).double().mean())


@pytest.mark.filterwarnings("ignore::semimetric.training.TrainingWarning")
@pytest.mark.parametrize("values", [{}, {"components": 6, "augmentation": "digits"}])
def test_it_learns_to_tell_turns_of_images_it_has_not_seen(values: dict) -> None:
    others = lamps(60, 1)
    before = share_told(trainer_of(lamps(160, 0), 0, **values), others)
    trainer = trainer_of(lamps(160, 0), 8, **values)
    result = trainer.fit()
    assert torch.isfinite(result.metric.transform(encode(result.encoder, others))).all()
    assert before < 0.5
    assert share_told(trainer, others) > 0.9


@pytest.mark.parametrize("shape", [(5, 16), (5, 4, 4), (5, 1, 2, 4, 4)])
def test_what_is_no_image_is_refused_with_what_to_use_instead(shape: tuple[int, ...]) -> None:
    words = r"must be images \(N, channels, side, side\), got shape .* use method 'instance' or 'deepcluster'"
    with pytest.raises(InputError, match=words):
        prepared(torch.zeros(shape))


def test_oblong_images_are_refused_before_training() -> None:
    images = pictures(6, 3, 5, 7, dtype=torch.float32)
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(105, WIDTH))
    data = TrainingData(images, torch.full((6,), -1))
    with pytest.raises(InputError, match=r"must be square images, got 5 x 7 pixels\. Crop or pad them to squares\."):
        Trainer(encoder, Rotation(), data, TrainingSettings(selection="last"))


def test_an_unknown_kind_of_views_is_named() -> None:
    with pytest.raises(InputError, match=r"augmentation must be one of auto, digits, .* none, got 'faces'"):
        RotationSettings(augmentation="faces")
