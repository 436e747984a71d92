from __future__ import annotations

import math

import pytest
import torch
from helpers.draws import draws
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from semimetric.core.errors import InputError
from semimetric.graph import density as module
from semimetric.graph import density_affinities, nearest_neighbors, node_degrees, symmetric_edges


def sample(seed: int, count: int = 40, width: int = 4) -> Tensor:
    return torch.randn(count, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def by_loops(points: Tensor, neighbors: Tensor, steps: float) -> Tensor:
    """The affinities from their definition, pair by pair."""
    count, k = neighbors.shape
    distance = [[math.dist(points[i].tolist(), points[j].tolist()) for j in range(count)] for i in range(count)]
    all_pairs = [distance[i][j] for i in range(count) for j in range(count) if i != j]
    sigma = min(all_pairs) + (max(all_pairs) - min(all_pairs)) / steps

    def kernel(i: int, j: int) -> float:
        return math.exp(-(distance[i][j] ** 2) / (2 * sigma**2))

    density = [sum(kernel(i, j) for j in range(count) if j != i) / count for i in range(count)]
    beta = [max(rho / (sum(density) / count), 1e-6) for rho in density]
    weights = [[beta[i] * kernel(i, j) for j in neighbors[i].tolist()] for i in range(count)]
    mean = sum(map(sum, weights)) / (count * k)
    return torch.tensor(weights, dtype=torch.float64) / mean


@given(st.integers(0, 10_000), st.sampled_from([2.0, 5.0, 10.0]), st.integers(3, 30))
@draws(30)
def test_equals_the_definition(seed: int, steps: float, count: int) -> None:
    points = sample(seed, count)
    neighbors = nearest_neighbors(points, min(5, count - 1))
    found = density_affinities(points, neighbors, steps)
    assert torch.allclose(found, by_loops(points, neighbors, steps), rtol=1e-9, atol=1e-300)
    assert found.mean().item() == pytest.approx(1.0, rel=1e-12)


def test_blocks_of_rows_do_not_change_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    points = sample(1, 60)
    neighbors = nearest_neighbors(points, 5)
    whole = density_affinities(points, neighbors)
    monkeypatch.setattr(module, "BLOCK_ENTRIES", 60 * 7)
    assert torch.allclose(density_affinities(points, neighbors), whole, rtol=1e-12)


def test_even_density_and_a_wide_kernel_give_the_binary_graph() -> None:
    angles = torch.arange(24, dtype=torch.float64) * (2 * math.pi / 24)
    points = torch.stack([angles.cos(), angles.sin()], dim=1)
    neighbors = torch.stack([(torch.arange(24) + step) % 24 for step in (1, -1, 2, -2)], dim=1)
    wide = density_affinities(points, neighbors, bandwidth_steps=1e-6)
    assert torch.allclose(wide, torch.ones_like(wide), atol=1e-10)
    narrow = density_affinities(points, neighbors)
    assert torch.allclose(narrow[:, :2], narrow[0, 0].expand(24, 2), atol=1e-10)
    assert (narrow[:, 2:] < narrow[:, :2]).all()


def test_doubling_a_cluster_raises_its_density() -> None:
    left, right = sample(2, 20) * 0.1, sample(3, 20) * 0.1 + 3.0

    def share_of_left(points: Tensor, members: int) -> float:
        weights = density_affinities(points, nearest_neighbors(points, 5))
        return (weights[:members].mean() / weights.mean()).item()

    crowd = torch.cat([left, left + 1e-3 * sample(4, 20)])
    assert share_of_left(torch.cat([crowd, right]), 40) > 1.1 * share_of_left(torch.cat([left, right]), 20)


def test_quadratic_form_of_the_pairs_equals_the_directed_loop_and_its_laplacian_is_sound() -> None:
    points = sample(5)
    neighbors = nearest_neighbors(points, 6)
    directed = density_affinities(points, neighbors)
    loop = torch.zeros(4, 4, dtype=torch.float64)
    for i in range(40):
        for t, j in enumerate(neighbors[i].tolist()):
            loop += directed[i, t] * torch.outer(points[i] - points[j], points[i] - points[j]) / 2
    pairs, weights = symmetric_edges(neighbors, directed)
    laplacian = torch.diag(node_degrees(pairs, weights, 40))
    laplacian[pairs[:, 0], pairs[:, 1]] = laplacian[pairs[:, 1], pairs[:, 0]] = -weights
    assert torch.allclose(points.T @ laplacian @ points, loop, rtol=1e-10)
    assert torch.linalg.eigvalsh(laplacian)[0] > -1e-10
    assert laplacian.sum(1).abs().max() < 1e-12


@given(st.integers(0, 10_000), st.floats(-50, 50), st.sampled_from([1e-3, 1.0, 1e4]))
@draws(20)
def test_moving_turning_and_scaling_the_points_change_nothing(seed: int, shift: float, scale: float) -> None:
    points = sample(seed)
    neighbors = nearest_neighbors(points, 5)
    turn = torch.linalg.qr(sample(seed + 1, 4)).Q
    moved = density_affinities(scale * (points @ turn + shift), neighbors)
    assert torch.allclose(moved, density_affinities(points, neighbors), rtol=1e-8)


@pytest.mark.parametrize("steps", [10.0, 1e3, 1e6])
@pytest.mark.parametrize("rows", [20_000, 10])
def test_exact_duplicates_and_one_outlier_stay_finite(steps: float, rows: int) -> None:
    points = torch.zeros(50, 3)
    points[7] = 1000.0
    weights = density_affinities(points, nearest_neighbors(points, 4), steps, exact_rows=rows)
    assert torch.isfinite(weights).all()
    assert weights.mean().item() == pytest.approx(1.0)
    assert (weights[7] <= 1e-6).all()


def test_equal_points_weigh_nothing() -> None:
    neighbors = torch.tensor([[1, 2], [0, 2], [0, 1]])
    assert density_affinities(torch.full((3, 2), 0.1), neighbors).tolist() == [[0.0, 0.0]] * 3


def test_many_rows_take_the_density_of_their_neighbours() -> None:
    points = sample(6, 500)
    neighbors = nearest_neighbors(points, 5)
    squares = (points[:, None] - points[neighbors]).square().sum(2)
    smallest, largest_distance = squares.min().sqrt(), torch.pdist(points).max()
    sigma = smallest + (largest_distance - smallest) / 10
    kernels = (-squares / (2 * sigma**2)).exp()
    expected = kernels.sum(1, keepdim=True) * kernels
    found = density_affinities(points, neighbors, exact_rows=499)  # the sample of 2000 rows holds all 500
    assert torch.allclose(found, expected / expected.mean(), rtol=1e-9)


def test_above_the_limit_no_array_has_a_row_and_a_column_for_each_example(
    largest_tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    points = sample(7, 500)
    neighbors = nearest_neighbors(points, 5)
    monkeypatch.setattr(module, "SAMPLED_ROWS", 100)
    with largest_tensor() as largest:
        density_affinities(points, neighbors, exact_rows=499)
    assert 0 < largest.entries <= 100 * 100 + 500 * 5 * 4


def test_float32_features_are_worked_on_in_float64() -> None:
    points = (sample(8) + 1000.0).float()
    neighbors = nearest_neighbors(points, 5)
    single = density_affinities(points, neighbors)
    assert single.dtype == torch.float64
    assert torch.allclose(single, density_affinities(points.double(), neighbors), rtol=1e-12)


def test_bad_input_is_named() -> None:
    points = sample(0)
    neighbors = nearest_neighbors(points, 3)
    with pytest.raises(InputError, match="bandwidth_steps"):
        density_affinities(points, neighbors, 0.0)
    with pytest.raises(InputError, match="each of the 39 examples, got 40"):
        density_affinities(points[:-1], neighbors)
    with pytest.raises(InputError, match="must be a matrix"):
        density_affinities(points[0], neighbors)
    with pytest.raises(InputError, match="NaN or infinite"):
        density_affinities(points / 0, neighbors)
