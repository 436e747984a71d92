from __future__ import annotations

import numpy as np
import pytest
import torch

import semimetric
from semimetric import GuardWarning, learn_metric
from semimetric.core.errors import InputError
from semimetric.methods import METHODS

LINEAR = [name for name, kind in METHODS.items() if kind.learns_without_network]

pytestmark = pytest.mark.filterwarnings("ignore::semimetric.GuardWarning")


@pytest.fixture
def data() -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    classes = np.arange(90) % 3
    features = 3 * np.eye(5)[classes] + generator.normal(size=(90, 5))
    return features, np.where(np.arange(90) < 18, classes, -1)


@pytest.mark.parametrize("method", LINEAR)
def test_arrays_in_metric_out(method: str, data) -> None:
    features, labels = data
    metric = learn_metric(features, labels, method).metric
    points = torch.from_numpy(features)
    assert metric.matrix.shape == (5, 5)
    assert torch.allclose(metric.matrix, metric.factor @ metric.factor.T)
    embedded = metric.transform(points)
    assert torch.equal(embedded, metric.transform(features))
    assert torch.allclose(metric.squared_distances(points), torch.cdist(embedded, embedded).square(), atol=1e-8)
    v = points[3] - points[40]
    assert float(metric.squared_distances(points)[3, 40]) == pytest.approx(float(v @ metric.matrix @ v))


@pytest.mark.parametrize("method", LINEAR)
def test_fewer_components(method: str, data) -> None:
    features, labels = data
    metric = learn_metric(features, labels, method, n_components=2).metric
    assert metric.factor.shape == (5, 2)


@pytest.mark.parametrize("method", LINEAR)
def test_the_unit_of_the_features_does_not_matter(method: str, data) -> None:
    features, labels = data
    metric = learn_metric(features, labels, method).metric
    scaled = learn_metric(1000 * features - 7, labels, method).metric
    points = torch.from_numpy(features)
    difference = scaled.squared_distances(1000 * points) - metric.squared_distances(points)
    assert float(difference.abs().max()) <= 1e-3 * float(metric.squared_distances(points).mean())


@pytest.mark.parametrize("method", LINEAR)
def test_all_examples_labelled(method: str, data) -> None:
    features, _ = data
    metric = learn_metric(features, np.arange(90) % 3, method).metric
    assert torch.isfinite(metric.factor).all()


def test_a_method_that_is_a_network_is_refused(data) -> None:
    features, labels = data
    assert "consensus" not in LINEAR
    with pytest.raises(InputError, match=r"consensus.*network") as refused:
        learn_metric(features, labels, "consensus")
    assert all(name in str(refused.value) for name in LINEAR)


def test_guards_are_warned_of_and_returned(data) -> None:
    features, labels = data
    with pytest.warns(GuardWarning, match="problem becomes unbounded"):
        found = learn_metric(features, labels, "lrml", dissimilar_weight=50)
    assert list(found.guards) == ["dissimilar_weight_capped"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"method": "magic"}, "method must be one of"),
        ({"labels": np.full(90, -1)}, "every label is -1"),
        ({"labels": np.zeros(90, dtype=int)}, "at least 2 classes, all 90 are of class 0"),
        ({"labels": np.zeros(4, dtype=int)}, "labels"),
        ({"features": np.ones((90, 5))}, "features is constant"),
        ({"features": np.full((90, 5), np.nan)}, "features"),
        ({"n_components": 6}, "n_components must be a whole number from 1 to 5"),
        ({"n_components": 2.0}, "n_components must be a whole number"),
        ({"n_components": True}, "n_components must be a whole number"),
        ({"k": 2.5}, "k must be a whole number, got 2.5"),
        ({"ridge": "a"}, "ridge must be a number, got 'a'"),
        ({"features": 1e160 * np.random.default_rng(0).normal(size=(90, 5))}, "multiply them by a constant"),
        ({"features": 1e-160 * np.random.default_rng(0).normal(size=(90, 5))}, "multiply them by a constant"),
        ({"components": 3}, "pass n_components"),
        ({"k": 90}, r"k must be below the number of examples in the graph \(90.*got 90"),
        ({"ridgee": 1.0}, "Did you mean 'ridge'"),
    ],
)
def test_bad_input_is_named(changes: dict, message: str, data) -> None:
    features, labels = data
    with pytest.raises(InputError, match=message):
        learn_metric(**({"features": features, "labels": labels, "method": "lrml"} | changes))


def test_large_integers_keep_their_digits() -> None:
    generator = np.random.default_rng(0)
    columns = 1_700_000_000 + generator.integers(0, 60, size=(60, 3))
    metric = learn_metric(columns, np.where(np.arange(60) < 20, columns[:, 0] > 1_700_000_030, -1), "apit").metric
    assert float(metric.squared_distances(columns).max()) > 0


def test_it_is_at_the_front_door() -> None:
    assert "learn_metric" in semimetric.__all__
