"""``consensus`` in the space of how classes vary, and with weights beside the surest quarter."""

from __future__ import annotations

import pytest
import torch
from helpers.noisy_classes import KEPT, WIDTH, noisy_classes
from helpers.objectives import objective
from torch import Tensor

from semimetric.encoders import unit_features
from semimetric.evaluation import recall_at_k
from semimetric.methods import build_method
from semimetric.methods.consensus import Consensus
from semimetric.metric import within_class_whitening
from semimetric.training import Trainer, TrainingData, TrainingSettings


def prepared(points: Tensor, labels: Tensor, **values) -> Consensus:
    method = build_method("consensus", **({"k": 6, "components": KEPT} | values))
    method.on_fit_begin(points, labels, points.shape[1], torch.Generator().manual_seed(0))
    return method


def test_the_space_is_that_of_the_first_features_and_stays() -> None:
    points, labels, _ = noisy_classes()
    method = prepared(points, labels, metric="within")
    method.constraints(points, labels)
    placed = method.directions.clone()
    assert placed.shape == (WIDTH, KEPT)
    assert bool(method.placed)
    method.constraints(points.flip(1), labels)
    torch.testing.assert_close(method.directions, placed)


def test_pseudo_labels_are_better_in_it_than_among_the_features_as_they_are() -> None:
    points, labels, classes = noisy_classes()
    right = {
        metric: prepared(points, labels, metric=metric).constraints(points, labels).quality(classes)
        for metric in ("principal", "within")
    }
    assert right["within"]["right_pseudo_labels"] > right["principal"]["right_pseudo_labels"] + 0.1


def test_the_embedding_is_renewed_from_what_examples_are_taken_for() -> None:
    points, labels, classes = noisy_classes()
    method = prepared(points, labels, metric="within", shrinkage=0.5)
    start = method.initial_metric(WIDTH, torch.Generator().manual_seed(0))
    found = method.constraints(points, labels)
    metric = method.update_metric(start, points, found)
    expected = within_class_whitening(points, found.targets, found.weights, KEPT, 0.5)
    torch.testing.assert_close(metric.factor, expected.factor)
    assert objective(method, metric, points, found) < objective(method, start, points, found)
    assert recall_at_k(metric.transform(points), classes, (1,))[1] > recall_at_k(points, classes, (1,))[1]


def test_all_dimensions_are_kept_where_none_are_named() -> None:
    points, labels, _ = noisy_classes()
    method = prepared(points, labels, metric="within", components=0)
    metric = method.update_metric(None, points, method.constraints(points, labels))
    assert metric.factor.shape == (WIDTH, WIDTH)


def test_training_in_it_resumes_from_its_state() -> None:
    points, labels, _ = noisy_classes()
    method = prepared(points, labels, metric="within")
    method.constraints(points, labels)
    again = prepared(points, labels, metric="within")
    again.load_state_dict(method.state_dict())
    others = noisy_classes(seed=1)[0]  # from which a method without its state would place itself elsewhere
    torch.testing.assert_close(again.constraints(others, labels).shares, method.constraints(others, labels).shares)


def test_a_network_is_trained_through_it() -> None:
    points, labels, _ = noisy_classes()
    torch.manual_seed(0)
    encoder = torch.nn.Linear(WIDTH, WIDTH)
    values = {"k": 6, "components": KEPT, "metric": "within", "relative": True}
    settings = TrainingSettings(epochs=3, batch_size=60, optimizer="adamw", lr=1e-3, selection="last")
    trainer = Trainer(encoder, build_method("consensus", **values), TrainingData(points, labels), settings)
    before = encoder.weight.detach().clone()
    result = trainer.fit()
    assert not torch.equal(before, result.encoder.weight)
    assert result.metric.factor.shape == (WIDTH, KEPT)
    assert bool(result.metric.factor.isfinite().all())


def test_the_embedding_may_be_renewed_before_every_batch() -> None:
    points, labels, _ = noisy_classes()
    values = {"k": 6, "components": KEPT, "metric": "within"}
    settings = TrainingSettings(epochs=1, batch_size=60, lr=1e-3, selection="last", metric_every="batch")
    encoder = torch.nn.Linear(WIDTH, WIDTH)
    result = Trainer(encoder, build_method("consensus", **values), TrainingData(points, labels), settings).fit()
    assert result.metric.factor.shape == (WIDTH, KEPT)
    assert bool(result.metric.factor.isfinite().all())


def test_where_the_graph_knows_nothing_examples_do_not_count_in_full() -> None:
    generator = torch.Generator().manual_seed(0)
    noise = unit_features(torch.randn(600, WIDTH, generator=generator))
    labels = torch.where(torch.arange(600) < 100, torch.arange(600) % 50, -1)
    found = prepared(noise, labels, relative=True, gamma=0.999, k=60, selective=False).constraints(noise, labels)
    assert float(found.confidence[~found.known].max()) < 1e-3
    assert float(found.weights[~found.known].max()) < 1


def test_beside_the_surest_quarter_a_quarter_counts_in_full() -> None:
    points, labels, _ = noisy_classes()
    plain = prepared(points, labels, selective=False).constraints(points, labels)
    beside = prepared(points, labels, selective=False, relative=True).constraints(points, labels)
    free = ~plain.known
    torch.testing.assert_close(beside.confidence, plain.confidence)
    assert float((beside.weights[free] == 1).double().mean()) == pytest.approx(0.25, abs=0.01)
    assert bool((beside.weights[free] >= plain.weights[free]).all())
    order = plain.weights[free].argsort()
    assert bool((beside.weights[free][order].diff() >= 0).all())


def test_with_every_label_known_there_is_nothing_to_compare_with() -> None:
    points, _, classes = noisy_classes()
    found = prepared(points, classes, relative=True).constraints(points, classes)
    torch.testing.assert_close(found.weights, torch.ones_like(found.weights))
