"""Entries of the walk on edges: the printed bound holds, on the CPU and in the block shapes of a GPU."""

from __future__ import annotations

import pytest
import torch
from helpers.graphs import cliques, star
from torch import Tensor

from semimetric.graph import edge_walk, nearest_neighbors
from semimetric.graph.edge_walk import EdgeWalk
from semimetric.graph.walk import walk_matrix


def errors(neighbors: Tensor, gamma: float, walk: EdgeWalk) -> tuple[float, float]:
    """The largest error of all blocks, and the largest bound."""
    dense = walk_matrix(neighbors, gamma)
    own = torch.arange(len(neighbors))[:, None]
    forward, found = dense[own, neighbors].flatten(), list(walk.blocks())
    error = 0.0
    for block in found:
        backward = dense[neighbors[block.nodes], block.nodes[:, None]]
        error = max(error, float((block.backward - backward).abs().max()))
        error = max([error, *(block.forward - forward[block.positions]).abs().tolist()])
    assert sorted(torch.cat([block.nodes for block in found]).tolist()) == list(range(len(neighbors)))
    assert sorted(torch.cat([block.positions for block in found]).tolist()) == list(range(neighbors.numel()))
    return error, max(block.bound for block in found)


@pytest.mark.parametrize("gamma", [0.5, 0.9, 0.99])
def test_error_is_within_the_bound_and_that_within_the_tolerance(make_clusters, gamma: float) -> None:
    neighbors = nearest_neighbors(make_clusters(0, 600, 16, 20, 0.2)[0], 8)
    error, bound = errors(neighbors, gamma, EdgeWalk(neighbors, gamma))
    assert error <= bound <= edge_walk.EDGE_TOLERANCE


def test_a_bound_that_is_not_reached_by_the_series_is_reached_by_the_solver(make_clusters) -> None:
    neighbors = nearest_neighbors(make_clusters(0, 300, 16, 20, 0.2)[0], 8)
    error, bound = errors(neighbors, 0.99, EdgeWalk(neighbors, 0.99, tolerance=1e-9))
    assert error <= bound <= 1e-9


def test_more_cliques_than_modes_are_solved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(edge_walk, "MODES", 2)
    neighbors = cliques(15, 4)
    error, bound = errors(neighbors, 0.99, EdgeWalk(neighbors, 0.99))
    assert error <= bound <= edge_walk.EDGE_TOLERANCE


@pytest.mark.parametrize("gamma", [0.5, 0.99])
def test_nodes_that_no_edge_leads_to_are_solved(gamma: float) -> None:
    neighbors = star(200)  # four blocks, most without an edge to their nodes
    error, bound = errors(neighbors, gamma, EdgeWalk(neighbors, gamma))
    assert error <= bound <= edge_walk.EDGE_TOLERANCE


def test_sums_beyond_the_range_of_float32_are_left_to_the_solver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(edge_walk, "FIRST_TERMS", 16)
    neighbors = cliques(1, 430)
    error, bound = errors(neighbors, 0.99, EdgeWalk(neighbors, 0.99))
    assert error <= bound <= edge_walk.EDGE_TOLERANCE


def test_slow_modes_save_terms_on_clusters(make_clusters, monkeypatch: pytest.MonkeyPatch) -> None:
    neighbors = nearest_neighbors(make_clusters(0, 600, 16, 20, 0.2)[0], 8)
    walk, products = EdgeWalk(neighbors, 0.99), []
    original = edge_walk.walk_sums
    monkeypatch.setattr(edge_walk, "walk_sums", lambda *given: products.append(1) or original(*given))
    walk.columns(0, 48)
    assert len(products) <= 2 * edge_walk.FIRST_TERMS  # the power series alone takes 1,300 terms


@pytest.mark.gpu
def test_gpu_keeps_the_bound(make_clusters) -> None:
    neighbors = nearest_neighbors(make_clusters(0, 600, 16, 20, 0.2)[0], 8)
    found = list(EdgeWalk(neighbors.cuda(), 0.99).blocks())
    nodes = torch.cat([block.nodes for block in found]).cpu()
    exact = walk_matrix(neighbors, 0.99)[neighbors[nodes], nodes[:, None]]
    error = (torch.cat([block.backward for block in found]).cpu() - exact).abs().max()
    assert error <= max(block.bound for block in found) <= edge_walk.EDGE_TOLERANCE
