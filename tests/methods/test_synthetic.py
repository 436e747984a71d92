from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from helpers.objectives import objective
from torch import nn

from semimetric.core.errors import InputError
from semimetric.methods.synthetic import RandomTriplets, Synthetic, SyntheticSettings, random_triplets
from semimetric.metric import Metric
from semimetric.metric.synthetic import centred_corners
from semimetric.training import Run, Trainer, TrainingData, TrainingSettings

WIDTH = 12


@pytest.fixture
def points(make_clusters):
    return make_clusters(0, 60, WIDTH, 3)[0]


def begun(components: int = 0, **settings: object) -> tuple[Synthetic, Metric]:
    method = Synthetic(SyntheticSettings(components=components, **settings))
    return method, method.initial_metric(WIDTH, torch.Generator().manual_seed(0))


def norm_of(method: Synthetic) -> float:
    return float(torch.linalg.matrix_norm(method.synthesis))


@pytest.mark.parametrize("count", [3, 4, 50])
def test_triplets_are_of_three_examples_and_anchor_every_one(count: int) -> None:
    found = random_triplets(count, 4, torch.Generator().manual_seed(0))
    assert torch.equal(torch.bincount(found[:, 0]), torch.full((count,), 4))
    assert all(len(set(triplet)) == 3 for triplet in found.tolist())
    assert 0 <= int(found.min()) <= int(found.max()) < count


def test_others_of_a_triplet_are_any_two_equally_often() -> None:
    found = random_triplets(5, 6000, torch.Generator().manual_seed(0))
    places = 5 * found[:, 1] + found[:, 2]
    counts = torch.bincount(places[found[:, 0] == 2], minlength=25)
    assert int((counts > 0).sum()) == 12
    assert float((counts[counts > 0] - 500).abs().max()) < 4 * math.sqrt(500)


def test_triplets_follow_the_seed_that_an_epoch_draws(points) -> None:
    method, _ = begun(triplets_per_example=2)
    drawn = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        method.on_epoch_begin(1)
        drawn.append(method.constraints(points, torch.full((60,), -1)).index)
        method.on_epoch_begin(2)
        drawn.append(method.constraints(points, torch.full((60,), -1)).index)
    assert torch.equal(drawn[0], drawn[2])
    assert torch.equal(drawn[1], drawn[3])
    assert not torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[4])
    assert drawn[0].shape == (120, 3)


def test_triplets_claim_nothing_and_come_in_batches_of_one_shape(points) -> None:
    method, _ = begun()
    triplets = method.constraints(points, torch.full((60,), -1))
    assert isinstance(triplets, RandomTriplets)
    assert triplets.quality(torch.zeros(60)) == {}
    batches = list(triplets.minibatches(8, torch.Generator().manual_seed(0)))
    assert [(len(batch), len(batch.nodes)) for batch in batches] == [(8, 24)] * 7


@pytest.mark.parametrize("components", [0, 4])
def test_loss_is_the_objective_without_its_penalty(points, components: int) -> None:
    method, metric = begun(components)
    triplets = method.constraints(points, torch.full((60,), -1))
    metric = method.update_metric(metric, points, triplets)
    penalty = 0.5 * float((metric.factor.T @ metric.factor - torch.eye(metric.factor.shape[1])).square().sum())
    minimised = objective(method, metric, points, triplets)
    assert penalty > 0
    assert float(method.loss(metric, points.double(), triplets)) + penalty == pytest.approx(minimised, rel=1e-10)
    assert float(method.loss(metric, points, triplets)) == pytest.approx(minimised - penalty, rel=1e-4)


def test_loss_is_the_mean_over_triplets(points) -> None:
    method, metric = begun(4)
    triplets = method.constraints(points, torch.full((60,), -1))
    parts = [method.loss(metric, points[b.nodes], b) for b in triplets.minibatches(12, torch.Generator())]
    assert float(torch.stack(parts).mean()) == pytest.approx(float(method.loss(metric, points, triplets)), rel=1e-5)


@pytest.mark.parametrize("components", [0, 4])
def test_a_metric_step_learns_both_and_keeps_the_norm(points, components: int) -> None:
    method, metric = begun(components)
    triplets = method.constraints(points, torch.full((60,), -1))
    before, first = method.synthesis.clone(), objective(method, metric, points, triplets)
    costs = [first]
    for _ in range(5):
        metric = method.update_metric(metric, points, triplets)
        costs.append(objective(method, metric, points, triplets))
        assert norm_of(method) == pytest.approx(math.sqrt(WIDTH), rel=1e-12)
    assert all(later < earlier for earlier, later in pairwise(costs))
    assert not torch.allclose(before, method.synthesis)
    assert not metric.is_orthonormal(1e-3)


def test_a_thousand_iterations_on_changing_triplets_stay_finite(points) -> None:
    method, metric = begun(4)
    for epoch in range(100):
        method.on_epoch_begin(epoch)
        metric = method.update_metric(metric, points, method.constraints(points, torch.full((60,), -1)))
    assert torch.isfinite(metric.factor).all()
    assert norm_of(method) == pytest.approx(math.sqrt(WIDTH), rel=1e-12)
    assert all(math.isfinite(value) for value in statistics(method, metric, points).values())


def statistics(method: Synthetic, metric: Metric, points) -> dict[str, float]:
    return method.statistics(metric, points, method.constraints(points, torch.full((60,), -1)))


def test_statistics_say_where_the_start_is(points) -> None:
    found = statistics(*begun(4), points)
    assert found["p_all_alike"] == pytest.approx(0.5, abs=1e-5)
    assert found["orthogonality_defect"] == pytest.approx(0.0, abs=1e-12)
    assert 0.0 < found["p_one_odd"] <= 0.2  # the most that two complementary losses leave
    method, metric = begun(4)
    triplets = method.constraints(points, torch.full((60,), -1))
    assert found["triplet_entropy"] == pytest.approx(float(method.loss(metric, points, triplets)))


def test_a_generator_a_thousand_times_as_large_trains_on_finite_numbers(points) -> None:
    method, metric = begun(4)
    method.synthesis *= 1e3
    features = points.clone().requires_grad_()
    triplets = method.constraints(points, torch.full((60,), -1))
    method.loss(metric, features, triplets).backward()
    assert torch.isfinite(features.grad).all()
    assert math.isfinite(objective(method, method.update_metric(metric, points, triplets), points, triplets))
    assert norm_of(method) == pytest.approx(math.sqrt(WIDTH), rel=1e-12)


def test_state_goes_with_the_module(points) -> None:
    method, metric = begun(4)
    method.on_epoch_begin(1)
    method.update_metric(metric, points, method.constraints(points, torch.full((60,), -1)))
    other, _ = begun(4)
    assert not torch.equal(other.synthesis, method.synthesis)
    other.load_state_dict(method.state_dict())
    assert torch.equal(other.synthesis, method.synthesis)
    assert torch.equal(other.seed, method.seed)
    method.synthesis.zero_()
    assert norm_of(other) > 1


def trainer(points, run: Run | None = None, **changes: object) -> Trainer:
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Linear(WIDTH, 24), nn.ReLU(), nn.Linear(24, WIDTH))
    values = {"epochs": 3, "batch_size": 10, "optimizer": "adamw", "lr": 1e-3, "selection": "last"} | changes
    data = TrainingData(points, torch.full((len(points),), -1))
    return Trainer(encoder, Synthetic(SyntheticSettings(components=4)), data, TrainingSettings(**values), run=run)


@pytest.mark.filterwarnings("ignore::semimetric.training.TrainingWarning")
@pytest.mark.parametrize("metric_every", ["epoch", "batch"])
def test_training_without_any_label_is_finite_and_repeats(points, metric_every: str) -> None:
    first, second = (trainer(points, metric_every=metric_every).fit() for _ in range(2))
    assert torch.isfinite(first.metric.factor).all()
    assert torch.equal(first.metric.factor, second.metric.factor)
    weights = [result.encoder[0].weight for result in (first, second)]
    assert torch.equal(*weights)
    assert not torch.equal(weights[0], trainer(points).encoder[0].weight)


@pytest.mark.filterwarnings("ignore::semimetric.training.TrainingWarning")
def test_averaging_the_weights_leaves_the_generator_alone(points, monkeypatch: pytest.MonkeyPatch) -> None:
    """S belongs to L, which is not averaged: what the metric step leaves is what the encoder's steps see."""
    averaged = trainer(points, average=0.9, epochs=2)
    method, seen = averaged.method, []
    loss = method.loss
    monkeypatch.setattr(method, "loss", lambda *args: (seen.append(method.synthesis.clone()), loss(*args))[1])
    averaged.fit()
    assert len(seen) == 12
    assert all(torch.equal(one, seen[0]) for one in seen[:6])
    assert all(torch.equal(one, method.synthesis) for one in seen[6:])
    assert not torch.equal(seen[0], method.synthesis)


@pytest.mark.filterwarnings("ignore::semimetric.training.TrainingWarning")
def test_a_resumed_run_has_the_same_generator(points, tmp_path) -> None:
    whole = trainer(points)
    whole.fit()
    run = Run.create(tmp_path / "run", {})
    trainer(points, run, epochs=2).fit()
    resumed = trainer(points, run)
    resumed.fit()
    assert torch.equal(resumed.method.synthesis, whole.method.synthesis)
    assert torch.equal(resumed.metric.factor, whole.metric.factor)


def test_two_examples_are_refused() -> None:
    method, _ = begun()
    method.check_working_set(1, 2)
    with pytest.raises(InputError, match="a partition has 2 examples"):
        method.check_working_set(0, 2)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"alpha": 90.0}, "alpha"),
        ({"orthogonality": -1.0}, "orthogonality"),
        ({"orthogonality": math.inf}, "orthogonality"),
        ({"triplets_per_example": 0}, "triplets_per_example"),
        ({"cg_iterations": 0}, "cg_iterations"),
        ({"components": -1}, "components"),
    ],
)
def test_settings_without_sense_are_refused(settings: dict, named: str) -> None:
    with pytest.raises(InputError, match=named):
        SyntheticSettings(**settings)


def test_the_problem_is_of_the_triplets_of_the_batch(points) -> None:
    method, metric = begun(4)
    batch = next(iter(method.constraints(points, torch.full((60,), -1)).minibatches(5, torch.Generator())))
    corners = centred_corners(points[batch.nodes].double(), batch.index)
    assert torch.equal(method._problem(points[batch.nodes], batch).corners, corners)
    assert method.update_metric(metric, points[batch.nodes], batch).factor.shape == (WIDTH, 4)
