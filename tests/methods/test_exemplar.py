"""Surrogate classes of single examples: which they are, how they are transformed, and what is learned from them."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from helpers.views import pictures, seeded
from torch import Tensor, nn

from semimetric.core.errors import InputError
from semimetric.data import Augmentation, Views, augmentation_for
from semimetric.encoders import encode, unit_features
from semimetric.evaluation import recall_at_k
from semimetric.methods.exemplar import MOST_JUDGED, MOST_LOGITS, TRANSFORMATIONS, Exemplar, ExemplarSettings
from semimetric.metric import Metric
from semimetric.training import Trainer, TrainingData, TrainingSettings

WIDTH = 8
DRAWS = 10_000


def prepared(inputs: Tensor, seed: int = 0, width: int = WIDTH, labels: Tensor | None = None, **values) -> Exemplar:
    method = Exemplar(ExemplarSettings(**values))
    labels = torch.full((len(inputs),), -1) if labels is None else labels
    method.on_fit_begin(inputs, labels, width, seeded(seed))
    return method


def features_of(count: int, width: int = WIDTH, seed: int = 0) -> Tensor:
    return unit_features(pictures(count, width, seed=seed, dtype=torch.float32))


def loss_of(method: Exemplar, features: Tensor) -> Tensor:
    """On the features of all seeds."""
    return method.loss(Metric.identity(features.shape[1]), features, method.constraints(features, torch.empty(0)))


@pytest.mark.parametrize(("examples", "exemplars", "expected"), [(50, 20, 20), (50, 8000, 50), (50, 50, 50)])
def test_seeds_are_different_examples_in_their_order_and_at_most_all(
    examples: int, exemplars: int, expected: int
) -> None:
    method = prepared(pictures(examples, 4), exemplars=exemplars)
    assert len(method.seeds) == method.head.out_features == expected
    assert torch.equal(method.seeds, torch.unique(method.seeds))
    assert 0 <= int(method.seeds[0]) <= int(method.seeds[-1]) < examples


def test_the_generator_draws_the_seeds() -> None:
    inputs = pictures(200, 4)
    first = prepared(inputs, exemplars=20).seeds
    assert torch.equal(first, prepared(inputs, exemplars=20).seeds)
    assert not torch.equal(first, prepared(inputs, seed=1, exemplars=20).seeds)


def test_an_example_has_the_same_target_in_every_batch_of_every_epoch() -> None:
    inputs = pictures(60, 4)
    method = prepared(inputs, exemplars=40)
    generator = seeded(1)
    met = []
    for epoch in range(3):
        constraints = method.constraints(features_of(60, seed=epoch), torch.empty(0))
        for batch in constraints.minibatches(8, generator):
            assert torch.equal(method.seeds[batch.targets], batch.nodes)
            met.append(batch.nodes)
    assert torch.equal(torch.cat(met).sort().values, method.seeds.repeat_interleave(3))


def test_the_working_set_is_all_examples_in_their_order_whatever_the_partitions() -> None:
    inputs = pictures(60, 4, dtype=torch.float32)
    settings = TrainingSettings(partition_size=10, epochs_per_partition=1, selection="last")
    trainer = Trainer(nn.Linear(4, WIDTH), Exemplar(), TrainingData(inputs, torch.full((60,), -1)), settings)
    for epoch in (1, 2):
        assert torch.equal(trainer._working_set(epoch), torch.arange(60))


def test_labels_do_not_matter() -> None:
    inputs, features = pictures(60, 4), features_of(60)
    states, losses = [], []
    for labels in (torch.full((60,), -1), torch.arange(60) % 3):
        method = prepared(inputs, labels=labels, exemplars=40)
        states.append(method.state_dict())
        constraints = method.constraints(features, labels)
        losses.append(method.loss(Metric.identity(WIDTH), features[constraints.nodes], constraints))
    assert torch.equal(*losses)
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


@pytest.mark.parametrize("exemplars", [10, 100, 3000])
def test_a_new_head_takes_all_seeds_for_equally_likely(exemplars: int) -> None:
    method = prepared(pictures(exemplars, 4))
    loss = float(loss_of(method, features_of(exemplars)).detach())
    assert loss == pytest.approx(math.log(exemplars), rel=0.05)


def test_loss_is_the_mean_surprise_at_the_own_seed() -> None:
    method = prepared(pictures(12, 4), components=5)
    assert method.head.weight.shape == (12, 5)
    nn.init.normal_(method.head.weight, generator=seeded(1))
    nn.init.normal_(method.head.bias, generator=seeded(2))
    method.requires_grad_(False)
    metric, features = method.initial_metric(WIDTH, seeded(3)), features_of(12)
    constraints = method.constraints(features, torch.empty(0))
    batch = next(iter(constraints.minibatches(7, seeded(4))))
    points = features[batch.nodes].double() @ metric.factor.double()
    surprises = []
    for point, node in zip(points, batch.nodes.tolist(), strict=True):
        logits = 16 * point / point.norm() @ method.head.weight.double().T + method.head.bias.double()
        surprises.append(float(logits.exp().sum().log() - logits[node]))
    found = float(method.loss(metric, features[batch.nodes], batch))
    assert found == pytest.approx(sum(surprises) / 7, rel=1e-5)


@pytest.mark.parametrize(
    ("shape", "kind"),
    [((20, 6), "vectors"), ((20, 1, 10, 10), "digits"), ((20, 2, 10, 10), "digits"), ((20, 3, 10, 10), "objects")],
)
def test_transformations_fit_the_inputs(shape: tuple[int, ...], kind: str) -> None:
    inputs = pictures(*shape, dtype=torch.float32)
    method = prepared(inputs)
    assert method.make_views.augmentations == (TRANSFORMATIONS[kind],)
    views, others = method.views(inputs), method.views(inputs)
    assert views.shape == inputs.shape
    assert not torch.equal(views, others)
    assert not torch.equal(views, inputs)


def test_a_named_kind_wins_over_the_shape() -> None:
    images = pictures(20, 1, 10, 10)
    assert prepared(images, augmentation="objects").make_views.augmentations == (TRANSFORMATIONS["objects"],)
    with pytest.raises(InputError, match="vectors know noise and drop alone"):
        prepared(images.flatten(1), augmentation="digits")


@pytest.mark.parametrize("kind", ["photographs", "randaugment"])
def test_kinds_without_a_transformation_of_their_own_are_seen_strongly(kind: str) -> None:
    images = pictures(20, 3, 10, 10)
    assert prepared(images, augmentation=kind).make_views.augmentations == (augmentation_for(kind, "strong"),)


@pytest.mark.parametrize("shape", [(20, 6), (20, 3, 8, 8), (20, 4, 5)])
def test_without_augmentation_examples_are_seen_as_they_are(shape: tuple[int, ...]) -> None:
    inputs = pictures(*shape)
    assert torch.equal(prepared(inputs, augmentation="none").views(inputs), inputs)


@pytest.mark.parametrize("kind", list(TRANSFORMATIONS))
def test_amounts_of_nothing_return_the_input(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The middle of every range, no event and no noise, in place of what would be drawn."""
    inputs = pictures(*((6, 5) if kind == "vectors" else (6, 3, 9, 9)))
    method = prepared(inputs, augmentation=kind)
    monkeypatch.setattr(torch, "rand", lambda size, **how: torch.full(size, 0.5, dtype=how["dtype"]))
    monkeypatch.setattr(torch, "randn", lambda size, **how: torch.zeros(size, dtype=how["dtype"]))
    torch.testing.assert_close(method.views(inputs), inputs)


def views_of(images: Tensor, augmentation: Augmentation) -> Tensor:
    torch.manual_seed(0)
    return Views(images, [augmentation])(images)


def assert_between(amounts: Tensor, least: float, most: float, tolerance: float = 1e-3) -> None:
    """All inside, and both ends reached for all one can see."""
    margin = 0.01 * (most - least)
    assert least - tolerance <= float(amounts.min()) < least + margin
    assert most - margin < float(amounts.max()) <= most + tolerance


@pytest.mark.parametrize("kind", ["digits", "objects"])
def test_seeds_are_moved_turned_and_zoomed_as_far_as_in_the_original(kind: str) -> None:
    """The view of an image of its own coordinates is linear; the four pixels at its centre say which map it is."""
    side = 20
    places = torch.arange(side) - (side - 1) / 2
    image = torch.stack(torch.meshgrid(places, places, indexing="xy"))  # x, y
    geometry = replace(TRANSFORMATIONS[kind], contrast=0.0, brightness=0.0, saturation=0.0)
    centre = views_of(image.expand(DRAWS, -1, -1, -1), geometry)[:, :, 9:11, 9:11]
    by_x, by_y = centre.diff(dim=3).mean((2, 3)), centre.diff(dim=2).mean((2, 3))
    maps = torch.stack((by_x, by_y), dim=2)  # (N, 2, 2), from a pixel of the view to where it was taken from
    shifts = -torch.linalg.solve(maps, centre.mean((2, 3)))
    mirrored = torch.linalg.det(maps) < 0
    assert float(mirrored.double().mean()) == pytest.approx(TRANSFORMATIONS[kind].flip, abs=0.02)
    assert TRANSFORMATIONS["digits"].flip == 0
    maps[mirrored, 0] *= -1
    assert_between(torch.rad2deg(torch.atan2(maps[:, 0, 1], maps[:, 0, 0])).abs(), 0.0, 20.0, tolerance=0.01)
    assert_between(1 / torch.linalg.det(maps).sqrt(), 0.5**0.5, 2**0.5)
    torch.testing.assert_close(shifts, shifts.round(), atol=1e-3, rtol=0)
    for along in shifts.T:
        assert sorted(set(along.round().int().tolist())) == list(range(-4, 5))  # 0.2 of 20 pixels


@pytest.mark.parametrize("kind", ["digits", "objects"])
def test_seeds_are_recoloured_within_their_ranges(kind: str) -> None:
    image = pictures(3, 6, 6, dtype=torch.float32) + 0.5
    light = replace(TRANSFORMATIONS[kind], shift=0.0, rotate=0.0, scale=0.0, flip=0.0)
    views = views_of(image.expand(DRAWS, -1, -1, -1), light)
    grey, greys = image.mean(0), views.mean(1)
    contrasts = greys.flatten(1).std(1) / grey.std()
    assert_between(contrasts, 0.5, 1.5)
    added = (views.mean((1, 2, 3)) - image.mean()) / image.square().mean().sqrt()
    assert_between(added, -0.4, 0.4)
    saturations = (views - greys[:, None]).flatten(1).norm(dim=1) / (image - grey).norm() / contrasts
    if kind == "objects":
        assert_between(saturations, 0.2, 1.8)
    else:
        torch.testing.assert_close(saturations, torch.ones(DRAWS), atol=1e-3, rtol=0)


def test_vectors_get_the_strong_preset() -> None:
    assert TRANSFORMATIONS["vectors"] == augmentation_for("vectors", "strong")


@pytest.mark.parametrize("features", [torch.zeros(30, WIDTH), torch.ones(30, WIDTH) / WIDTH**0.5])
def test_features_that_are_all_the_same_have_a_loss_and_a_gradient(features: Tensor) -> None:
    """A dead network returns zeros, which no norm can make a direction of."""
    method = prepared(pictures(30, 4))
    features = features.clone().requires_grad_()
    loss = loss_of(method, features)
    loss.backward()
    assert math.log(30) - 1e-5 <= float(loss.detach()) < 1.05 * math.log(30)
    for gradient in (features.grad, method.head.weight.grad, method.head.bias.grad):
        assert gradient is not None
        assert torch.isfinite(gradient).all()


@pytest.mark.parametrize("certainty", [1.0, 30.0])
def test_duplicates_are_contradictory_classes(certainty: float) -> None:
    """Whatever the head says of an example that is there twice, it is wrong of one of the two: log 2 at the least."""
    method = prepared(pictures(20, 4))
    nn.init.normal_(method.head.weight, std=certainty, generator=seeded(1))
    loss = float(loss_of(method, features_of(10).repeat(2, 1)).detach())
    assert math.isfinite(loss)
    assert loss >= math.log(2)


def test_statistics_judge_the_seeds_as_they_are() -> None:
    method = prepared(pictures(30, 4), exemplars=20)
    features, metric = features_of(30), Metric.identity(WIDTH)
    constraints = method.constraints(features, torch.empty(0))
    with torch.no_grad():
        method.head.weight.copy_(features[method.seeds])
        method.head.weight[3:8] *= -1  # five seeds that the head takes for anything but themselves
    found = method.statistics(metric, features, constraints)
    assert found["exemplar_accuracy"] == 0.75
    assert found["exemplar_loss"] == pytest.approx(float(loss_of(method, features[method.seeds]).detach()), rel=1e-5)


def test_statistics_of_many_seeds_stay_cheap(largest_tensor) -> None:
    count = 7 * MOST_JUDGED - 5
    method = prepared(torch.arange(2 * count).reshape(count, 2).float(), width=4, exemplars=count)
    features = features_of(count, 4)
    constraints = method.constraints(features, torch.empty(0))
    judged: list[int] = []
    method.head.register_forward_hook(lambda head, points, logits: judged.append(len(logits)))
    with largest_tensor() as seen:
        found = method.statistics(Metric.identity(4), features, constraints)
    assert sum(judged) == MOST_JUDGED
    assert MOST_LOGITS / 2 < seen.entries <= MOST_LOGITS < MOST_JUDGED * count
    assert found["exemplar_loss"] == pytest.approx(math.log(count), rel=0.05)
    assert 0 <= found["exemplar_accuracy"] < 0.01


STAMPS = torch.stack(
    [
        torch.tensor([[0, 0, 1, 0, 0]] * 2 + [[1] * 5] + [[0, 0, 1, 0, 0]] * 2),
        torch.tensor([[1] * 5] + [[1, 0, 0, 0, 1]] * 3 + [[1] * 5]),
        (torch.eye(5) + torch.eye(5).flip(1)).clamp_max(1),
    ]
).float()
"""A plus sign, a frame and a saltire."""


def stamped(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Images (N, 1, 12, 12) of the three signs near the centre, of different strength, in noise; with their classes."""
    generator = seeded(seed)
    classes = torch.arange(count) % 3
    images = 0.3 * torch.randn(count, 1, 12, 12, generator=generator)
    corners = torch.randint(2, 6, (count, 2), generator=generator).tolist()
    strengths = 1 + torch.rand(count, generator=generator)
    for image, (row, column), strength, sign in zip(images, corners, strengths, STAMPS[classes], strict=True):
        image[0, row : row + 5, column : column + 5] += strength * sign
    return images, classes


def network(seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 32, 3),
        nn.ReLU(),
        nn.AdaptiveMaxPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 16),
    )


@pytest.mark.filterwarnings("ignore::semimetric.training.TrainingWarning")
@pytest.mark.parametrize("seed", [0, 1])
def test_examples_of_a_class_come_together_without_any_label(seed: int) -> None:
    """Of held-out images too: signs differ by more than the transformations, examples of a sign do not."""
    images, _ = stamped(150, seed)
    others, classes = stamped(150, seed + 10)
    encoder = network(seed)
    before = recall_at_k(encode(encoder, others), classes, [1])[1]
    settings = TrainingSettings(epochs=20, batch_size=25, lr=1e-2, selection="last")
    result = Trainer(encoder, Exemplar(), TrainingData(images, torch.full((150,), -1)), settings, seed).fit()
    embedding = result.metric.transform(encode(result.encoder, others))
    assert torch.isfinite(embedding).all()
    assert recall_at_k(embedding, classes, [1])[1] > max(0.9, before + 0.1)


@pytest.mark.filterwarnings("ignore::semimetric.training.TrainingWarning")
@pytest.mark.parametrize("augmentation", ["auto", "none"])
def test_training_on_duplicates_stays_finite(augmentation: str) -> None:
    images = stamped(30, 0)[0].repeat(2, 1, 1, 1)
    settings = TrainingSettings(epochs=5, batch_size=20, lr=1e-2, selection="last")
    method = Exemplar(ExemplarSettings(augmentation=augmentation))
    result = Trainer(network(0), method, TrainingData(images, torch.full((60,), -1)), settings).fit()
    assert result.epochs == 5
    assert torch.isfinite(encode(result.encoder, images)).all()
    assert torch.isfinite(method.head.weight).all()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"exemplars": 1}, "exemplars must be at least 2, got 1"),
        (
            {"augmentation": "faces"},
            "augmentation must be one of auto, digits, objects, randaugment, photographs, crops, vectors, none, got",
        ),
        ({"components": -1}, "components must be a finite number of at least 0, got -1"),
    ],
)
def test_bad_settings_are_named(values: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        ExemplarSettings(**values)
