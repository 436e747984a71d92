from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from helpers.draws import draws
from helpers.graphs import cliques, graph
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from semimetric.core.errors import InputError
from semimetric.graph import (
    PRIOR,
    Posteriors,
    class_posteriors,
    cosine_posteriors,
    names_and_confidence,
    nearest_neighbors,
    posteriors,
)


def dense(neighbors: Tensor, labels: Tensor, weights: Tensor, gamma: float, prior: float = 0.0) -> Tensor:
    """Posteriors from the definition."""
    directed = torch.zeros(len(labels), len(labels), dtype=torch.float64).scatter_(1, neighbors, weights)
    w = (directed + directed.T) / 2
    root = w.sum(1).rsqrt().diag()
    y = torch.stack([(labels == c).double() / (labels == c).sum() for c in labels[labels >= 0].unique()], dim=1)
    f = torch.linalg.solve(torch.eye(len(labels)).double() - gamma * root @ w @ root, (1 - gamma) * y)
    sums, named = f.sum(1), f.argmax(1)
    alike = [sorted(sums[named == name].tolist()) for name in named.tolist()]
    f = f + prior / f.shape[1] * torch.tensor([[group[3 * len(group) // 4]] for group in alike]).double()
    return f / f.sum(1, keepdim=True)


@pytest.mark.parametrize("gamma", [0.5, 0.99])
@pytest.mark.parametrize("seed", range(3))
def test_equal_the_definition(seed: int, gamma: float) -> None:
    _, neighbors, labels = graph(seed)
    weights = torch.rand(60, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + 0.1
    found = class_posteriors(neighbors, labels, weights, gamma, tolerance=1e-12)
    expected = dense(neighbors, labels, weights, gamma)
    assert torch.allclose(found.shares, expected, atol=1e-8)
    entropy = -(expected * expected.log()).sum(1)
    assert torch.allclose(found.confidence, 1 - entropy / math.log(3), atol=1e-8)


@pytest.mark.parametrize("prior", [0.1, 2.0])
@pytest.mark.parametrize("seed", range(3))
def test_a_prior_adds_the_same_to_every_class(seed: int, prior: float) -> None:
    _, neighbors, labels = graph(seed)
    weights = torch.rand(60, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + 0.1
    found = class_posteriors(neighbors, labels, weights, 0.9, 1e-12, prior)
    expected = dense(neighbors, labels, weights, 0.9, prior)
    assert torch.allclose(found.shares, expected, atol=1e-8)
    assert torch.allclose(found.confidence, 1 + (expected * expected.log()).sum(1) / math.log(3), atol=1e-8)


def test_without_a_prior_nothing_is_added() -> None:
    _, neighbors, labels = graph(0)
    plain, zero = class_posteriors(neighbors, labels), class_posteriors(neighbors, labels, prior=0.0)
    assert all(torch.equal(a, b) for a, b in zip(plain, zero, strict=True))


def test_a_prior_keeps_the_likeliest_class_and_lowers_confidence() -> None:
    _, neighbors, labels = graph(1)
    found = [class_posteriors(neighbors, labels, gamma=0.9, prior=prior) for prior in (0.0, 0.1, 1.0, 10.0)]
    for less, more in pairwise(found):
        assert torch.equal(less.shares.argmax(1), more.shares.argmax(1))
        assert bool((more.confidence < less.confidence).all())


def test_a_cluster_that_hangs_by_a_thread_is_sure_of_itself_without_a_prior_alone() -> None:
    """Three cliques with a label in two of them; one edge from the second leads to the third."""
    neighbors = cliques(3, 8)
    neighbors[16, 0] = 15
    labels = torch.full((24,), -1)
    labels[[0, 8]] = torch.tensor([0, 1])
    plain, careful = (class_posteriors(neighbors, labels, gamma=0.9, prior=prior) for prior in (0.0, 0.1))
    assert float(plain.confidence[16:].min()) > 0.99
    assert float(careful.confidence[16:].mean()) < 0.5 * float(careful.confidence[:16].min())
    assert bool((careful.shares.argmax(1) == plain.shares.argmax(1)).all())


def test_what_no_label_reaches_stays_undecided_with_a_prior() -> None:
    labels = torch.full((15,), -1)
    labels[:2] = torch.tensor([0, 1])
    found = class_posteriors(cliques(3, 5), labels, prior=0.1)
    assert torch.allclose(found.shares[5:], torch.full((10, 2), 0.5, dtype=torch.float64))
    assert float(found.confidence[5:].max()) < 1e-12


def test_agrees_with_label_spreading(make_clusters) -> None:
    spreading = pytest.importorskip("sklearn.semi_supervised")
    points, classes = make_clusters(0, 120, 8, 3)
    labels = torch.where(torch.arange(120) < 12, classes, -1)  # as many of each class: balance changes nothing
    neighbors = nearest_neighbors(points, 8)
    joined = torch.zeros(120, 120).double().scatter_(1, neighbors, 0.5)
    kernel = (joined + joined.T).numpy()
    other = spreading.LabelSpreading(kernel=lambda a, b: kernel, alpha=0.9, max_iter=2000, tol=1e-12)
    other.fit(points.numpy(), labels.numpy())
    found = class_posteriors(neighbors, labels, torch.ones(120, 8), 0.9, tolerance=1e-12)
    assert torch.allclose(found.shares, torch.from_numpy(other.label_distributions_), atol=1e-6)


@given(st.integers(0, 10_000))
@draws(25)
def test_rows_are_probabilities_and_class_numbers_are_names(seed: int) -> None:
    _, neighbors, labels = graph(seed)
    if len(labels[labels >= 0].unique()) < 2:
        return
    found = class_posteriors(neighbors, labels)
    assert torch.allclose(found.shares.sum(1), torch.ones(60).double())
    assert float(found.shares.min()) >= 0
    assert 0 <= float(found.confidence.min()) <= float(found.confidence.max()) <= 1
    renamed = class_posteriors(neighbors, torch.where(labels >= 0, 70 - 10 * labels, -1))
    assert torch.equal(renamed.classes, 70 - 10 * found.classes.flip(0))
    assert torch.allclose(renamed.shares, found.shares.flip(1), atol=1e-6)


def test_a_class_with_more_labels_does_not_win_by_that() -> None:
    """Two equal halves of one clique: its unlabelled member belongs to neither, however many labels each has."""
    neighbors = cliques(1, 12)
    labels = torch.tensor([0] + [1] * 10 + [-1])
    found = class_posteriors(neighbors, labels, tolerance=1e-10)
    assert float(found.shares[-1, 0]) == pytest.approx(0.5, abs=1e-6)


def test_what_no_label_reaches_stays_undecided() -> None:
    labels = torch.full((15,), -1)
    labels[:2] = torch.tensor([0, 1])
    found = class_posteriors(cliques(3, 5), labels)
    assert torch.equal(found.shares[5:], torch.full((10, 2), 0.5, dtype=torch.float64))
    assert torch.equal(found.confidence[5:], torch.zeros(10, dtype=torch.float64))


def test_clusters_are_named_by_a_few_labels(make_clusters) -> None:
    points, classes = make_clusters(1, 600, 16, 4, 0.2)
    labels = torch.where(torch.arange(600) < 8, classes, -1)
    found = class_posteriors(nearest_neighbors(points, 10), labels)
    assert float((found.shares.argmax(1) == classes).double().mean()) > 0.95
    sure = found.confidence >= found.confidence.median()
    assert float((found.shares.argmax(1) == classes)[sure].double().mean()) > 0.99


def test_no_array_has_a_row_and_a_column_for_each_node(largest_tensor) -> None:
    _, neighbors, labels = graph(0, count=500, k=4)
    with largest_tensor() as largest:
        class_posteriors(neighbors, labels)
    assert 0 < largest.entries <= 2 * 2 * 500 * 4


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"labels": torch.full((60,), -1)}, "at least 2 classes, got 0"),
        ({"labels": torch.zeros(60, dtype=torch.long)}, "got 1"),
        ({"gamma": 1.0}, "gamma"),
        ({"tolerance": 0.0}, "tolerance"),
        ({"prior": -0.1}, "prior must be a finite number of at least 0, got -0.1"),
        ({"prior": math.inf}, "prior must be a finite number"),
        ({"weights": torch.ones(60, 4)}, "one entry per directed edge"),
        ({"weights": -torch.ones(60, 5)}, "weights must not be negative"),
    ],
)
def test_bad_input_is_named(changes: dict, message: str) -> None:
    _, neighbors, labels = graph(0)
    with pytest.raises(InputError, match=message):
        class_posteriors(**({"neighbors": neighbors, "labels": labels} | changes))


@pytest.mark.gpu
def test_gpu_agrees_with_the_cpu() -> None:
    _, neighbors, labels = graph(0, count=400, k=6)
    here = class_posteriors(neighbors, labels)
    there = class_posteriors(neighbors.cuda(), labels.cuda())
    assert torch.allclose(there.shares.cpu(), here.shares, atol=1e-6)
    assert torch.equal(there.shares, class_posteriors(neighbors.cuda(), labels.cuda()).shares)


def test_cosines_of_neighbours_weigh_the_edges() -> None:
    points = torch.nn.functional.normalize(torch.randn(40, 5, generator=torch.Generator().manual_seed(0)), dim=1)
    labels = torch.where(torch.arange(40) < 6, torch.arange(40) % 3, -1)
    neighbors = nearest_neighbors(points, 7)
    weights = (points[:, None] * points[neighbors]).sum(2).clamp_min(0) ** 3
    expected = class_posteriors(neighbors, labels, weights, 0.9, prior=PRIOR)
    found = cosine_posteriors(points, labels, 7, 0.9)
    torch.testing.assert_close(found.shares, expected.shares, atol=1e-6, rtol=0)


def test_a_label_is_its_name_and_as_sure_as_anything() -> None:
    found = Posteriors(torch.tensor([2, 5, 9]), torch.eye(3)[[0, 1, 2, 1]], torch.tensor([0.1, 0.4, 0.2, 0.3]))
    named, confidence = names_and_confidence(found, torch.tensor([9, -1, -1, 2]))
    assert named.tolist() == [2, 1, 2, 0]
    torch.testing.assert_close(confidence, torch.tensor([0.4, 0.4, 0.2, 0.4]))


@pytest.mark.parametrize("gamma", [0.5, 0.99, 0.9999999])
@pytest.mark.parametrize("classes", [3, 70])
def test_blocks_of_classes_in_single_precision_meet_the_tolerance(gamma: float, classes: int) -> None:
    """70 classes are three blocks; with gamma so near 1 float32 alone would not converge."""
    _, neighbors, _ = graph(3, count=300, k=6)
    labels = torch.where(torch.arange(300) < 2 * classes, torch.arange(300) % classes, -1)
    found = posteriors._normalized_graph(neighbors, None)
    known = torch.nn.functional.one_hot(labels.clamp_min(0), classes).double() * (labels >= 0)[:, None]
    solution = posteriors._solve(found, known, gamma, 1e-9)
    residual = (1 - gamma) * known - (solution - gamma * posteriors._product(found, solution))
    assert (residual.square().sum(0).sqrt() <= 2e-9 * (1 - gamma) * known.square().sum(0).sqrt()).all()
