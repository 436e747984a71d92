from __future__ import annotations

import pytest
import torch

from semimetric.evaluation import Spread, collapse_warning, measure_spread


def test_mean_distance_equals_the_pair_loop() -> None:
    points = torch.randn(40, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    pairs = torch.cdist(points, points).square().sum() / (40 * 39)
    assert measure_spread(points).mean_distance == pytest.approx(float(pairs))


@pytest.mark.parametrize("rank", [1, 3, 6])
def test_effective_rank_counts_equal_directions(rank: int) -> None:
    axes = torch.eye(8, dtype=torch.float64)[:rank]
    assert measure_spread(torch.cat([axes, -axes])).effective_rank == pytest.approx(rank)


def test_few_points_of_many_dimensions_have_the_spread_of_their_own_span() -> None:
    points = torch.randn(9, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    turned = torch.linalg.qr(torch.randn(40, 4, generator=torch.Generator().manual_seed(2), dtype=torch.float64)).Q
    expected, found = measure_spread(points), measure_spread(points @ turned.T)
    assert found.mean_distance == pytest.approx(expected.mean_distance)
    assert found.effective_rank == pytest.approx(expected.effective_rank)


def test_a_single_point_has_no_spread() -> None:
    assert measure_spread(torch.ones(5, 3)) == Spread(0.0, 0.0)


def test_warning_names_what_fell() -> None:
    start = Spread(1.0, 20.0)
    assert collapse_warning(start, Spread(0.9, 15.0)) is None
    assert "mean squared distance fell from 1 to 0.01" in str(collapse_warning(start, Spread(0.01, 15.0)))
    assert "effective rank fell from 20.0 to 1.2" in str(collapse_warning(start, Spread(0.9, 1.2)))
