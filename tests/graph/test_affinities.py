from __future__ import annotations

import pytest
import torch
from helpers.draws import draws
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from semimetric.core import arrays as checks
from semimetric.core.errors import InputError
from semimetric.graph import affinities as module
from semimetric.graph import (
    edge_walk,
    nearest_neighbors,
    propagate_affinities,
    propagate_labels,
    propagated_affinity_matrix,
)


def explicit(neighbors: Tensor, labels: Tensor, gamma: float, repulsion: float = 1.0) -> tuple[Tensor, Tensor]:
    """P and W written out entry by entry from the definition."""
    count, k = neighbors.shape
    q = torch.zeros(count, count, dtype=torch.float64)
    for i in range(count):
        for j in neighbors[i].tolist():
            q[i, j] = 1 / k
    w0 = torch.eye(count, dtype=torch.float64)
    for i in range(count):
        for j in range(count):
            if i != j and labels[i] >= 0 and labels[j] >= 0:
                w0[i, j] = 1.0 if labels[i] == labels[j] else -repulsion
    p = (1 - gamma) * torch.linalg.inv(torch.eye(count, dtype=torch.float64) - gamma * q)
    w = p @ w0
    return p, (w + w.T) / 2


def graph(seed: int, count: int = 60, k: int = 6, classes: int = 3, labelled: float = 0.4) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    neighbors = nearest_neighbors(torch.randn(count, 5, generator=generator, dtype=torch.float64), k)
    labels = torch.randint(classes, (count,), generator=generator)
    labels[torch.rand(count, generator=generator) > labelled] = -1
    return neighbors, labels


@given(st.integers(0, 10_000), st.sampled_from([0.5, 0.9, 0.99]), st.sampled_from([0.0, 0.1, 0.5, 1.0]))
@draws(25)
def test_edges_equal_the_explicit_inverse(seed: int, gamma: float, labelled: float) -> None:
    neighbors, labels = graph(seed, count=30, k=4, labelled=labelled)
    _, w = explicit(neighbors, labels, gamma)
    edges = propagate_affinities(neighbors, labels, gamma)
    assert torch.allclose(edges, w.gather(1, neighbors), rtol=0, atol=1e-10)
    assert torch.allclose(propagated_affinity_matrix(neighbors, labels, gamma), w, rtol=0, atol=1e-10)


@pytest.mark.parametrize("solver", ["dense", "iterative"])
@pytest.mark.parametrize("repulsion", [0.0, 0.3, 2.0])
def test_dissimilar_pairs_repel_as_strongly_as_asked(repulsion: float, solver: str) -> None:
    neighbors, labels = graph(4)
    _, w = explicit(neighbors, labels, 0.9, repulsion)
    edges = propagate_affinities(neighbors, labels, 0.9, solver, repulsion)  # type: ignore[arg-type]
    assert (edges - w.gather(1, neighbors)).abs().max() < 2e-6 * (1 + repulsion)
    assert torch.allclose(propagated_affinity_matrix(neighbors, labels, 0.9, repulsion), w, rtol=0, atol=1e-10)
    assert (float(w.min()) < 0) == (repulsion > 0)


def test_all_four_label_cases_occur_and_are_exact() -> None:
    neighbors, labels = graph(3, count=300, k=10)
    _, w = explicit(neighbors, labels, 0.99)
    edges, expected = propagate_affinities(neighbors, labels), w.gather(1, neighbors)
    source, target = (labels >= 0)[:, None].expand_as(neighbors), (labels >= 0)[neighbors]
    for case in (source & target, source & ~target, ~source & target, ~source & ~target):
        assert case.sum() > 20
        assert (edges - expected)[case].abs().max() < 1e-10


def test_iterative_solver_agrees_with_the_dense_one_within_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    neighbors, labels = graph(5, count=120, k=6)
    monkeypatch.setattr(edge_walk, "CACHED_COLUMNS", 17)  # several uneven blocks of columns
    iterative = propagate_affinities(neighbors, labels, solver="iterative")
    assert (iterative - propagate_affinities(neighbors, labels, solver="dense")).abs().max() < 2e-6


@pytest.mark.parametrize("tolerance", [1e-2, 1e-6, 1e-10])
def test_error_of_propagated_labels_stays_within_its_bound(tolerance: float) -> None:
    neighbors, labels = graph(7)
    p, _ = explicit(neighbors, labels, 0.99)
    exact = p @ module._class_indicators(labels)
    assert (propagate_labels(neighbors, labels, 0.99, tolerance) - exact).abs().max() <= tolerance


def test_everything_labelled_alike_gives_ones_and_no_labels_give_stochastic_rows() -> None:
    neighbors, _ = graph(13)
    count = len(neighbors)
    alike = propagated_affinity_matrix(neighbors, torch.zeros(count, dtype=torch.long))
    assert torch.allclose(alike, torch.ones_like(alike), atol=1e-10)
    unknown = propagated_affinity_matrix(neighbors, torch.full((count,), -1))
    walk = module.walk_matrix(neighbors, 0.99)
    assert torch.allclose(unknown, (walk + walk.T) / 2, atol=1e-12)


def test_labels_never_reach_a_pair_of_unlabelled_nodes() -> None:
    neighbors, labels = graph(17)
    known = labels >= 0
    permuted = labels.clone()
    permuted[known] = (labels[known] + 1) % 3
    permuted[known.nonzero()[0]] = 0
    unlabelled = ~known[:, None] & ~known[None, :]
    before, after = propagated_affinity_matrix(neighbors, labels), propagated_affinity_matrix(neighbors, permuted)
    assert torch.equal(before[unlabelled], after[unlabelled])
    assert not torch.equal(before[~unlabelled], after[~unlabelled])


@pytest.mark.parametrize("gamma", [0.0, 1.0, -0.1, 1.5, float("nan")])
def test_gamma_outside_the_open_interval_is_refused(gamma: float) -> None:
    neighbors, labels = graph(0)
    with pytest.raises(InputError, match="gamma must lie strictly between 0 and 1"):
        propagate_affinities(neighbors, labels, gamma)


def test_bad_graphs_and_labels_are_refused() -> None:
    neighbors, labels = graph(0)
    with pytest.raises(InputError, match="own neighbour"):
        propagate_affinities(torch.tensor([[0], [0]]), torch.tensor([0, 1]))
    with pytest.raises(InputError, match="lies outside"):
        propagate_affinities(torch.tensor([[5], [0]]), torch.tensor([0, 1]))
    with pytest.raises(InputError, match=r"shape \(60,\)"):
        propagate_affinities(neighbors, labels[:-1])
    with pytest.raises(InputError, match="must be integers"):
        propagate_affinities(neighbors, labels.float())
    with pytest.raises(InputError, match="got -2"):
        propagate_affinities(neighbors, labels - 1)
    with pytest.raises(InputError, match="one of auto, dense, iterative"):
        propagate_affinities(neighbors, labels, solver="magic")  # type: ignore[arg-type]
    for bad in (-0.1, float("nan")):
        with pytest.raises(InputError, match="repulsion"):
            propagate_affinities(neighbors, labels, repulsion=bad)
        with pytest.raises(InputError, match="repulsion"):
            propagated_affinity_matrix(neighbors, labels, repulsion=bad)


def test_no_dense_matrix_above_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    neighbors, labels = graph(0)
    monkeypatch.setattr(module, "DENSE_ROWS", 59)
    monkeypatch.setattr(checks, "DENSE_ROWS", 59)
    with pytest.raises(InputError, match="the limit is 59 x 59"):
        propagated_affinity_matrix(neighbors, labels)
    with pytest.raises(InputError, match="the limit is 59 x 59"):
        propagate_affinities(neighbors, labels, solver="dense")
    monkeypatch.setattr(module, "walk_matrix", None)  # auto must not take the dense road
    assert propagate_affinities(neighbors, labels).shape == neighbors.shape


def test_no_operation_above_the_limit_makes_a_square_array(largest_tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    neighbors, labels = graph(0, count=500, k=4)
    monkeypatch.setattr(module, "DENSE_ROWS", 499)
    with largest_tensor() as largest:
        propagate_affinities(neighbors, labels, gamma=0.9)
    assert 0 < largest.entries <= 500 * 64


def test_large_class_numbers_cost_nothing(largest_tensor) -> None:
    neighbors, labels = graph(0)
    sparse = torch.where(labels >= 0, labels * 1_000_000, labels)
    with largest_tensor() as largest:
        edges = propagate_affinities(neighbors, sparse)
    assert largest.entries <= 60 * 60
    assert torch.equal(edges, propagate_affinities(neighbors, labels))


def test_auto_solves_iteratively_from_a_size_on(monkeypatch: pytest.MonkeyPatch) -> None:
    neighbors, labels = graph(5, count=120, k=6)
    dense = propagate_affinities(neighbors, labels, solver="dense")
    assert torch.equal(propagate_affinities(neighbors, labels), dense)
    monkeypatch.setattr(module, "ITERATIVE_ROWS", 120)
    monkeypatch.setattr(module, "walk_matrix", None)
    assert (propagate_affinities(neighbors, labels) - dense).abs().max() < 2e-6
