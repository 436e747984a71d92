from __future__ import annotations

from threading import Thread

import pytest
import torch
from helpers.draws import draws
from helpers.graphs import GRAPHS, cliques, graph, sample, star
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from semimetric.graph import nearest_neighbors, walk
from semimetric.graph.walk import TOLERANCE, solve_walk, walk_matrix


@pytest.mark.parametrize("adjoint", [False, True])
@pytest.mark.parametrize("gamma", [0.3, 0.9, 0.99])
@pytest.mark.parametrize("neighbors", GRAPHS.values(), ids=GRAPHS)
def test_error_of_a_solve_is_within_its_tolerance(neighbors: Tensor, gamma: float, adjoint: bool) -> None:
    columns = torch.cat([sample(3), 1e-30 * sample(4), 1e30 * sample(5), torch.eye(60, dtype=torch.float64)], dim=1)
    columns[:, 1] = 0.0
    dense = walk_matrix(neighbors, gamma)
    exact = (dense.T if adjoint else dense) @ columns
    error = (solve_walk(neighbors, columns, gamma, 1e-8, adjoint) - exact).abs()
    if adjoint:
        assert (error.sum(0) <= (1e-8 + 1e-13) * columns.abs().sum(0)).all()
    else:
        assert (error.amax(0) <= (1e-8 + 1e-13) * columns.abs().amax(0)).all()


@given(st.integers(0, 10_000), st.sampled_from([1e-3, 1e-6, 1e-12]))
@draws(20)
def test_residual_is_within_the_tolerance(seed: int, tolerance: float) -> None:
    _, neighbors, _ = graph(seed)
    columns = sample(seed + 2)
    solution = solve_walk(neighbors, columns, 0.99, tolerance)
    residual = columns - (solution - 0.99 * solution[neighbors].mean(1)) / 0.01
    assert (residual.abs().amax(0) <= 1.01 * tolerance * columns.abs().amax(0)).all()


def test_the_transpose_is_the_adjoint() -> None:
    _, neighbors, _ = graph(11)
    x, y = sample(12), sample(13)
    there = (solve_walk(neighbors, x, 0.99) * y).sum(0)
    back = (x * solve_walk(neighbors, y, 0.99, adjoint=True)).sum(0)
    assert torch.allclose(there, back, rtol=0, atol=60 * 4 * TOLERANCE)


def test_rows_of_the_walk_sum_to_one_and_orphans_are_visited_by_themselves_alone() -> None:
    ones = torch.ones(60, 1, dtype=torch.float64)
    assert torch.allclose(solve_walk(star(60), ones, 0.99), ones, atol=TOLERANCE)
    visits = solve_walk(star(60), ones, 0.99, adjoint=True)
    assert torch.allclose(visits[2:], torch.full((58, 1), 0.01, dtype=torch.float64), atol=60 * TOLERANCE)


def test_cliques_share_within_and_never_between() -> None:
    solution = solve_walk(cliques(3, 4), torch.eye(12, dtype=torch.float64), 0.9)
    assert (solution[:4, 4:] == 0).all()
    within = solution[:4, :4][~torch.eye(4, dtype=torch.bool)]
    assert within.max() - within.min() <= 2 * TOLERANCE


def test_a_gamma_too_near_one_for_float32_is_still_solved() -> None:
    neighbors = cliques(3, 4)
    columns = sample(14, 12)
    error = (solve_walk(neighbors, columns, 1 - 1e-5, 1e-4) - walk_matrix(neighbors, 1 - 1e-5) @ columns).abs().amax(0)
    assert (error <= 1e-4 * columns.abs().amax(0)).all()


def test_where_the_fast_solver_fails_the_series_takes_over(monkeypatch: pytest.MonkeyPatch) -> None:
    _, neighbors, _ = graph(15)
    columns = sample(16)
    exact = walk_matrix(neighbors, 0.9) @ columns
    for useless in (torch.zeros_like, lambda right: torch.full_like(right, torch.nan), lambda right: 1e6 * right):
        monkeypatch.setattr(walk, "_bicgstab", lambda _, right, target, step=useless: step(right))
        error = (solve_walk(neighbors, columns, 0.9, 1e-8) - exact).abs().amax(0)
        assert (error <= 1e-8 * columns.abs().amax(0)).all()


def test_common_graphs_never_need_the_series(make_clusters, monkeypatch: pytest.MonkeyPatch) -> None:
    clustered, _ = make_clusters(0, 2000, 32, 10)
    monkeypatch.setattr(walk, "_power_series", None)
    monkeypatch.setattr(walk, "INNER_STEPS", 60)
    for points in (clustered, sample(21, 2000, 2)):
        neighbors = nearest_neighbors(points, 10)
        for gamma in (0.99, 0.999):
            solve_walk(neighbors, points, gamma)
            solve_walk(neighbors, torch.ones(2000, 1), gamma, adjoint=True)


def test_more_columns_than_fit_the_cache_are_solved_in_parts() -> None:
    _, neighbors, _ = graph(17)
    columns = sample(18, 60, 2 * walk.CACHED_COLUMNS + 5)
    parts = torch.cat([solve_walk(neighbors, columns[:, i : i + 1], 0.9) for i in range(columns.shape[1])], dim=1)
    assert torch.allclose(solve_walk(neighbors, columns, 0.9), parts, atol=1e-8)


@pytest.mark.parametrize(("entries", "expected"), [(60 * 4 + 1, 1), (60 * 4, 2)])
def test_small_blocks_take_one_thread_and_give_the_others_back(
    entries: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread that begins meanwhile computes with as many threads as all others."""
    _, neighbors, _ = graph(19)
    used = []

    def solve_block(_, block: Tensor, *rest) -> Tensor:
        used.append(torch.get_num_threads())
        begun = Thread(target=lambda: used.append(torch.get_num_threads()))
        begun.start()
        begun.join()
        return block

    monkeypatch.setattr(walk, "ONE_THREAD_ENTRIES", entries)
    monkeypatch.setattr(walk, "_solve_block", solve_block)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        solve_walk(neighbors, sample(20), 0.9)
        assert used == [expected, 2]
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_walk_matrix_is_a_stochastic_matrix_and_its_transpose_the_adjoint() -> None:
    _, neighbors, _ = graph(11)
    dense = walk_matrix(neighbors, 0.99)
    assert (dense >= 0).all()
    assert torch.allclose(dense.sum(1), torch.ones(len(dense), dtype=torch.float64), atol=1e-10)
    x, y = torch.randn(2, len(dense), dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert torch.isclose((dense @ x) @ y, x @ (dense.T @ y), rtol=1e-12)


def test_isolated_cliques_have_equal_walks_within() -> None:
    clique = torch.tensor([[1, 2, 3], [0, 2, 3], [0, 1, 3], [0, 1, 2]])
    dense = walk_matrix(torch.cat([clique, clique + 4]), 0.9)
    off_diagonal = ~torch.eye(4, dtype=torch.bool)
    assert dense[:4, :4][off_diagonal].unique().numel() == 1 or dense[:4, :4][off_diagonal].std() < 1e-15
    assert (dense[:4, 4:] == 0).all()
