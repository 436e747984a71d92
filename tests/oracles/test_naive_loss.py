"""The loss against the formula written out, coordinate by coordinate."""

from __future__ import annotations

import math

import pytest
import torch

from semimetric import angular_loss


@pytest.mark.parametrize("alpha", [20.0, 40.0, 55.0])
def test_loss_equals_a_triple_loop(make_clusters, alpha: float) -> None:
    points, _ = make_clusters(0, 12, 5, 3)
    points = points.double()
    factor = torch.randn(5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    triplets = torch.randint(12, (30, 3), generator=torch.Generator().manual_seed(2))
    total = 0.0
    for a, p, n in triplets.tolist():
        side = height = 0.0
        for column in range(3):
            along_side = sum(float(factor[i, column] * (points[a, i] - points[p, i])) for i in range(5))
            middle = [(points[a, i] + points[p, i]) / 2 for i in range(5)]
            along_height = sum(float(factor[i, column] * (points[n, i] - middle[i])) for i in range(5))
            side += along_side**2
            height += along_height**2
        total += math.log1p(math.exp(side - 4 * math.tan(math.radians(alpha)) ** 2 * height))
    assert float(angular_loss(points, triplets, factor, alpha)) == pytest.approx(total, rel=1e-12)
    assert float(angular_loss(points, triplets, factor, alpha, "mean")) == pytest.approx(total / 30, rel=1e-12)
