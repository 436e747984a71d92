from __future__ import annotations

import sys

import pytest
import torch
from helpers.draws import draws
from helpers.graphs import GRAPHS, graph, sample
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from semimetric.core.errors import InputError
from semimetric.graph import nearest_neighbors
from semimetric.graph.affinities import propagated_affinity_matrix
from semimetric.graph.forms import propagated_form
from semimetric.graph.walk import TOLERANCE, walk_matrix

module = sys.modules["semimetric.graph.forms"]  # its function of the same name hides it in the package


def by_loops(
    points: Tensor, neighbors: Tensor, labels: Tensor, gamma: float, repulsion: float = 1.0
) -> tuple[Tensor, float]:
    """T and the sum of |W*| from their definitions, pair by pair."""
    count, width = points.shape
    known = torch.eye(count, dtype=torch.float64)
    for i in range(count):
        for j in range(count):
            if i != j and labels[i] >= 0 and labels[j] >= 0:
                known[i, j] = 1.0 if labels[i] == labels[j] else -repulsion
    directed = walk_matrix(neighbors, gamma) @ known
    form = torch.zeros(width, width, dtype=torch.float64)
    for i in range(count):
        for j in range(count):
            gap = points[i] - points[j]
            form += directed[i, j] * torch.outer(gap, gap) / 2
    return form, directed.abs().sum().item()


def dense_form(points: Tensor, neighbors: Tensor, labels: Tensor, gamma: float) -> Tensor:
    w = propagated_affinity_matrix(neighbors, labels, gamma)
    return points.T @ (torch.diag(w.sum(1)) - w) @ points


def allowed(points: Tensor, labels: Tensor) -> float:
    """What errors of TOLERANCE in the solves can do to T: W0 has up to one entry per label in a row."""
    return float(10 * TOLERANCE * (1 + (labels >= 0).sum()) * points.square().sum())


LABELS = {
    "none": torch.full((60,), -1),
    "all": torch.arange(60) % 4,
    "all of one class": torch.zeros(60, dtype=torch.long),
    "all different": torch.arange(60),
    "one per class": torch.where(torch.arange(60) < 4, torch.arange(60), -1),
    "gaps between the numbers": torch.where(torch.arange(60) % 3 == 0, 1_000_000 * (torch.arange(60) % 2) + 7, -1),
    "few": torch.where(torch.arange(60) % 5 == 0, torch.arange(60) % 3, -1),
}


@pytest.mark.parametrize("labels", LABELS.values(), ids=LABELS)
@pytest.mark.parametrize("neighbors", GRAPHS.values(), ids=GRAPHS)
def test_form_and_total_equal_the_loops(neighbors: Tensor, labels: Tensor) -> None:
    points = sample(1)
    expected, total = by_loops(points, neighbors, labels, 0.95)
    found = propagated_form(points, neighbors, labels, 0.95)
    assert (found.matrix - expected).norm() <= allowed(points, labels)
    assert found.total == pytest.approx(total, rel=1e-8)
    assert torch.equal(found.matrix, found.matrix.T)


@pytest.mark.parametrize("repulsion", [0.0, 0.3, 2.0])
@pytest.mark.parametrize("labels", LABELS.values(), ids=LABELS)
def test_form_and_total_with_another_repulsion_equal_the_loops(labels: Tensor, repulsion: float) -> None:
    points, neighbors, _ = graph(2)
    expected, total = by_loops(points, neighbors, labels, 0.95, repulsion)
    found = propagated_form(points, neighbors, labels, 0.95, repulsion=repulsion)
    assert (found.matrix - expected).norm() <= (1 + repulsion) * allowed(points, labels)
    assert found.total == pytest.approx(total, rel=1e-8)


@pytest.mark.parametrize("labels", LABELS.values(), ids=LABELS)
def test_without_repulsion_the_form_is_positive_semi_definite(labels: Tensor) -> None:
    points, neighbors, _ = graph(2)
    values = torch.linalg.eigvalsh(propagated_form(points, neighbors, labels, repulsion=0.0).matrix)
    assert float(values[0]) >= -allowed(points, labels)
    assert float(values[-1]) > 0


@given(st.integers(0, 10_000), st.sampled_from([0.5, 0.9, 0.99, 0.999]), st.sampled_from([0.0, 0.1, 0.5, 1.0]))
@draws(25)
def test_form_equals_the_dense_one(seed: int, gamma: float, labelled: float) -> None:
    points, neighbors, labels = graph(seed, labelled=labelled)
    expected = dense_form(points, neighbors, labels, gamma)
    found = propagated_form(points, neighbors, labels, gamma)
    assert (found.matrix - expected).norm() <= allowed(points, labels)


def test_larger_graph_with_clusters(make_clusters) -> None:
    points, classes = make_clusters(3, 300, 16, 5)
    labels = torch.where(torch.arange(300) < 40, classes, -1)
    neighbors = nearest_neighbors(points, 10)
    found = propagated_form(points, neighbors, labels)
    expected = dense_form(points.double(), neighbors, labels, 0.99)
    assert (found.matrix - expected).norm() < 1e-8 * expected.norm()


def test_turning_the_points_turns_the_form_and_moving_them_does_nothing() -> None:
    points, neighbors, labels = graph(5)
    turn = torch.linalg.qr(sample(6, 4)).Q
    still = propagated_form(points, neighbors, labels).matrix
    turned = propagated_form(points @ turn, neighbors, labels).matrix
    moved = propagated_form(points + 1000.0, neighbors, labels).matrix
    assert (turned - turn.T @ still @ turn).norm() <= allowed(points, labels)
    assert (moved - still).norm() <= allowed(points, labels)
    assert still.norm() > 1.0


def test_a_constant_column_is_in_the_null_space() -> None:
    points, neighbors, labels = graph(7)
    points[:, 1] = 0.3
    matrix = propagated_form(points, neighbors, labels).matrix
    assert matrix[1].abs().max() < 1e-12
    assert matrix[0, 0].abs() > 1e-3


def test_blocks_of_classes_do_not_change_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    points, neighbors, _ = graph(8)
    labels = torch.arange(60)
    whole = propagated_form(points, neighbors, labels)
    monkeypatch.setattr(module, "BLOCK_ENTRIES", 60 * 7)
    parts = propagated_form(points, neighbors, labels)
    assert (parts.matrix - whole.matrix).norm() <= allowed(points, labels)
    assert parts.total == pytest.approx(whole.total, rel=1e-9)


def test_no_array_has_a_row_and_a_column_for_each_node(largest_tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    points, neighbors, _ = graph(9, count=500, k=4)
    monkeypatch.setattr(module, "BLOCK_ENTRIES", 500 * 50)
    with largest_tensor() as largest:
        propagated_form(points, neighbors, torch.arange(500), gamma=0.9, tolerance=1e-5)
    assert 0 < largest.entries <= 500 * 50


def test_bad_input_is_named() -> None:
    points, neighbors, labels = graph(0)
    with pytest.raises(InputError, match="each of the 60 nodes, got 59"):
        propagated_form(points[:-1], neighbors, labels)
    with pytest.raises(InputError, match="gamma must lie strictly between 0 and 1"):
        propagated_form(points, neighbors, labels, 1.0)
    with pytest.raises(InputError, match="tolerance"):
        propagated_form(points, neighbors, labels, tolerance=0.0)
    with pytest.raises(InputError, match="repulsion"):
        propagated_form(points, neighbors, labels, repulsion=-1.0)
    with pytest.raises(InputError, match=r"shape \(60,\)"):
        propagated_form(points, neighbors, labels[:-1])


@pytest.mark.gpu
def test_gpu_agrees_with_the_cpu(make_clusters) -> None:
    points, classes = make_clusters(4, 400, 16, 5)
    labels = torch.where(torch.arange(400) < 40, classes, -1)
    neighbors = nearest_neighbors(points, 10)
    here = propagated_form(points, neighbors, labels)
    there = propagated_form(points.cuda(), neighbors.cuda(), labels.cuda())
    assert (there.matrix.cpu() - here.matrix).norm() < 1e-7 * here.matrix.norm()
    assert there.total == pytest.approx(here.total, rel=1e-8)
    assert torch.equal(there.matrix, propagated_form(points.cuda(), neighbors.cuda(), labels.cuda()).matrix)
