from __future__ import annotations

import math

import pytest
import torch
from helpers.draws import draws
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from semimetric.core.errors import InputError
from semimetric.encoders import build_encoder
from semimetric.methods import build_method
from semimetric.methods.agreement import geometric_mean
from semimetric.methods.naming import KEPT, LEAST, WARM_UP, WIDTH, RunningNames
from semimetric.metric import Metric
from semimetric.pipeline.presets import training_settings
from semimetric.training import Trainer, TrainingData


def answers_of(rows: int, columns: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, columns, generator=generator, dtype=torch.float64).mul(2).softmax(1)


def followed(steps: int, columns: int = 4, counted: Tensor | None = None) -> RunningNames:
    names = RunningNames(columns)
    for step in range(steps):
        answers = answers_of(12, columns, step)
        names.follow(answers, answers.amax(1), torch.ones(12, dtype=torch.bool) if counted is None else counted)
    return names


def test_at_first_nothing_is_aligned_and_all_count() -> None:
    names, answers = RunningNames(5), answers_of(7, 5, 0)
    assert torch.allclose(names.aligned(answers), answers)
    assert torch.equal(names.weights(torch.tensor([0.2, 0.6, 1.0]).double()), torch.ones(3).double())


def test_running_means_equal_a_loop() -> None:
    counted = torch.arange(12) % 3 > 0
    names = followed(40, counted=counted)
    answers, level, variance = [0.25] * 4, 0.25, 1.0
    for step in range(40):
        rows = [row for row, use in zip(answers_of(12, 4, step).tolist(), counted.tolist(), strict=True) if use]
        most = [max(row) for row in rows]
        mean = sum(most) / len(most)
        share = max(1 - KEPT, 1 - (2 + step) / (WARM_UP + step + 1))
        answers = [old + share * (sum(row[c] for row in rows) / len(rows) - old) for c, old in enumerate(answers)]
        level += share * (mean - level)
        variance += share * (sum((value - mean) ** 2 for value in most) / len(most) - variance)
    assert names.answers.tolist() == pytest.approx(answers)
    assert float(names.level) == pytest.approx(level)
    assert float(names.variance) == pytest.approx(variance)


def test_a_batch_of_labelled_examples_moves_nothing() -> None:
    names = followed(3)
    before = [names.answers.clone(), names.level.clone(), names.variance.clone()]
    answers = answers_of(6, 4, 9)
    names.follow(answers, answers.amax(1), torch.zeros(6, dtype=torch.bool))
    assert all(torch.equal(*pair) for pair in zip(before, [names.answers, names.level, names.variance], strict=True))


@given(st.integers(0, 10_000), st.integers(1, 60))
@draws(20)
def test_aligned_answers_are_probabilities_and_favour_rare_classes(seed: int, steps: int) -> None:
    names, answers = followed(steps), answers_of(9, 4, seed)
    found = names.aligned(answers)
    assert torch.allclose(found.sum(1), torch.ones(9).double())
    rare, common = int(names.answers.argmin()), int(names.answers.argmax())
    ratio = (found[:, rare] / found[:, common]) / (answers[:, rare] / answers[:, common])
    assert torch.allclose(ratio, (names.answers[common] / names.answers[rare]).expand(9))
    assert float(ratio[0]) >= 1.0


def test_weights_are_a_gaussian_below_the_mean_confidence() -> None:
    names = followed(200)
    level, deviation = float(names.level), math.sqrt(float(names.variance))
    found = names.weights(torch.tensor([level + 0.1, level, level - deviation / WIDTH, level - deviation]).double())
    assert found.tolist() == pytest.approx([1.0, 1.0, math.exp(-0.5), math.exp(-(WIDTH**2) / 2)], rel=1e-6)


def test_equal_confidence_does_not_divide_by_zero() -> None:
    names = RunningNames(3)
    for _ in range(5000):
        names.follow(torch.eye(3).double(), torch.ones(3).double(), torch.ones(3, dtype=torch.bool))
    assert float(names.variance) < LEAST * 10_000
    assert torch.isfinite(names.weights(torch.tensor([0.3, 1.0]).double())).all()


@pytest.fixture
def trained(make_clusters) -> tuple[Trainer, Tensor]:
    points, classes = make_clusters(0, 240, 12, 3)
    labels = torch.where(torch.arange(240) < 15, 5 * classes + 3, -1)
    method = build_method("consensus", k=5, naming="step")
    settings = training_settings("consensus", epochs=4, batch_size=64, average=0.9, hold_back=0.0)
    trainer = Trainer(build_encoder("mlp", (12,), 0), method, TrainingData(points, labels), settings)
    trainer.fit()
    return trainer, classes


def test_a_step_names_a_batch_by_graph_and_weak_views(trained) -> None:
    trainer, _ = trained
    method = trainer.method.eval()
    features = trainer._features(trainer.data.inputs)
    batch = next(iter(method.constraints(features, trainer.data.labels).minibatches(32, trainer.generator)))
    weak = torch.randn(32, 3, generator=torch.Generator().manual_seed(3))
    found = method._named(weak, batch)
    aligned = method.names.aligned(weak.double().softmax(1))
    shares = geometric_mean(batch.graph, aligned, 0.5)
    weights = method.names.weights(shares.amax(1)) * batch.veto
    assert torch.equal(found.shares[batch.known], batch.shares[batch.known])
    assert torch.equal(found.weights[batch.known], torch.ones(int(batch.known.sum())).double())
    assert torch.allclose(found.shares[~batch.known], shares[~batch.known])
    assert torch.allclose(found.weights[~batch.known], weights[~batch.known])
    assert torch.equal(found.nodes, batch.nodes)


def test_pseudo_labels_follow_the_network_within_an_epoch(trained) -> None:
    trainer, _ = trained
    method = trainer.method.train()
    features = trainer._features(trainer.data.inputs)
    whole = method.constraints(features, trainer.data.labels)
    batch = next(iter(whole.minibatches(64, trainer.generator)))
    views = features[batch.nodes].repeat(2, 1)
    before = method.loss(Metric.identity(features.shape[1]), views, batch)
    with torch.no_grad():
        method.head.weight.copy_(method.head.weight.roll(1, 0))  # the head now takes each class for the next
    after = method.loss(Metric.identity(features.shape[1]), views, batch)
    assert not torch.allclose(before, after)
    named = method._named((16 * features[batch.nodes] @ method.head.weight.T + method.head.bias).detach(), batch)
    assert not torch.equal(named.targets[~batch.known], batch.targets[~batch.known])


def test_names_find_the_classes_and_are_saved_with_the_run(trained) -> None:
    trainer, classes = trained
    found = trainer.posteriors()
    right = (found.classes[found.shares.argmax(1)] == 5 * classes + 3).double().mean()
    assert float(right) > 0.9
    state = trainer.method.state_dict()
    assert {"names.answers", "names.level", "names.variance", "names.steps"} <= state.keys()
    assert float(state["names.steps"]) == float(state["steps"]) > 0


def test_running_means_stay_when_the_method_is_only_evaluated(trained) -> None:
    trainer, _ = trained
    method = trainer.method.eval()
    before = method.names.answers.clone()
    features = trainer._features(trainer.data.inputs)
    batch = next(iter(method.constraints(features, trainer.data.labels).minibatches(32, trainer.generator)))
    method.loss(Metric.identity(features.shape[1]), features[batch.nodes].repeat(2, 1), batch)
    assert torch.equal(method.names.answers, before)


def test_other_ways_of_naming_are_refused() -> None:
    with pytest.raises(InputError, match="naming"):
        build_method("consensus", naming="batch")
