from __future__ import annotations

import pytest
import torch
from helpers.noisy_classes import KEPT, WIDTH, noisy_classes
from torch import Tensor

from semimetric.core.errors import InputError
from semimetric.methods import LearnsMetric, build_method
from semimetric.methods.starts import ProjectionStart, projection_start
from semimetric.metric import Metric, orthonormalize, within_class_share
from semimetric.training import Trainer, TrainingData, TrainingSettings


def started(start: ProjectionStart, features: Tensor, labels: Tensor, components: int = KEPT) -> Metric:
    return projection_start(WIDTH, components, start, torch.Generator().manual_seed(0), lambda: (features, labels))


@pytest.mark.parametrize("start", ["random", "uniform-orthonormal", "principal", "classes"])
def test_every_start_is_orthonormal(start: ProjectionStart) -> None:
    features, labels, _ = noisy_classes()
    metric = started(start, features, labels)
    assert metric.factor.shape == (WIDTH, KEPT)
    assert metric.is_orthonormal()


def test_classes_are_told_apart_better_than_by_principal_components() -> None:
    features, labels, classes = noisy_classes()
    shares = {
        start: within_class_share(
            started(start, features, labels).transform(features), classes, torch.ones(len(classes))
        )
        for start in ("principal", "classes")
    }
    assert shares["classes"] < 0.7 * shares["principal"]


def test_a_uniform_start_is_the_draw_that_the_other_orthonormalises() -> None:
    features, labels, _ = noisy_classes()
    uniform, orthonormal = (started(start, features, labels).factor for start in ("uniform", "uniform-orthonormal"))
    assert 0 <= float(uniform.min()) <= float(uniform.max()) < 1
    assert not Metric(uniform).is_orthonormal()
    torch.testing.assert_close(orthonormalize(uniform), orthonormal)


@pytest.mark.parametrize("start", ["uniform", "uniform-orthonormal"])
def test_a_uniform_start_must_fit_into_the_features(start: ProjectionStart) -> None:
    features, labels, _ = noisy_classes()
    with pytest.raises(InputError, match=f"components must be at most the encoder's output width .{WIDTH}."):
        started(start, features, labels, components=WIDTH + 1)


def after_one_step(**settings: object) -> Metric:
    """The metric of affinity-triplets after one metric step from a uniform start."""
    features, labels, _ = noisy_classes()
    learner = build_method("affinity-triplets", components=KEPT, k=6, **settings)
    metric = learner.initial_metric(WIDTH, torch.Generator().manual_seed(0), lambda: (features, labels))
    assert isinstance(learner, LearnsMetric)
    return learner.update_metric(metric, features, learner.constraints(features, labels))


def test_the_first_metric_step_orthonormalises_a_uniform_start() -> None:
    stepped = after_one_step(start="uniform")
    assert stepped.is_orthonormal()
    torch.testing.assert_close(stepped.matrix, after_one_step(start="uniform-orthonormal").matrix)


def test_without_orthogonality_a_uniform_start_stays_free() -> None:
    assert not after_one_step(start="uniform", orthogonal=False).is_orthonormal(1e-3)


def test_a_fixed_projection_is_orthonormal_from_the_start() -> None:
    learner = build_method("triplet", start="uniform", components=KEPT)
    metric = learner.initial_metric(WIDTH, torch.Generator().manual_seed(0))
    expected = projection_start(WIDTH, KEPT, "uniform-orthonormal", torch.Generator().manual_seed(0), None)
    torch.testing.assert_close(metric.factor, expected.factor)


def test_all_dimensions_stay_where_none_are_asked_for() -> None:
    features, labels, _ = noisy_classes()
    assert torch.equal(started("classes", features, labels, components=0).factor, Metric.identity(WIDTH).factor)


@pytest.mark.parametrize("method", ["affinity-triplets", "triplet"])
def test_methods_start_there(method: str) -> None:
    features, labels, _ = noisy_classes()
    encoder = torch.nn.Linear(WIDTH, WIDTH)
    with torch.no_grad():
        encoder.weight.copy_(torch.eye(WIDTH))
        encoder.bias.zero_()
    learner = build_method(method, start="classes", components=KEPT)
    trainer = Trainer(encoder, learner, TrainingData(features, labels), TrainingSettings(epochs=0))
    seen = labels >= (-1 if learner.needs.unlabelled else 0)
    expected = started("classes", features[seen], labels[seen])
    torch.testing.assert_close(trainer.metric.matrix, expected.matrix)


def test_a_method_that_sees_no_label_cannot_start_from_classes() -> None:
    features, labels, _ = noisy_classes()
    learner = build_method("deepcluster", start="classes", components=KEPT)
    with pytest.raises(InputError, match="needs labels of at least two classes, and this method has fewer"):
        Trainer(torch.nn.Linear(WIDTH, WIDTH), learner, TrainingData(features, labels), TrainingSettings())


def test_bad_starts_are_named() -> None:
    with pytest.raises(
        InputError, match="start must be one of random, uniform, uniform-orthonormal, principal, classes, got 'zero'"
    ):
        build_method("affinity-triplets", start="zero")
    with pytest.raises(InputError, match="start 'classes' needs the features of the examples, and there are none"):
        projection_start(WIDTH, KEPT, "classes", torch.Generator(), None)
