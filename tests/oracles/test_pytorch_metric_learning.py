"""The contrastive loss without weights against the losses of pytorch-metric-learning where definitions coincide.

They average over the anchors that have positives, ours over all anchors; with one class alone theirs is zero.
"""

from __future__ import annotations

import pytest
import torch

from semimetric import contrastive_loss

losses = pytest.importorskip(
    "pytorch_metric_learning.losses",
    reason="the comparison with pytorch-metric-learning needs pytorch-metric-learning installed",
)


def assert_equal_with_gradients(points, targets, temperature, theirs, share):
    ours, other = points.clone().requires_grad_(), points.clone().requires_grad_()
    value, expected = contrastive_loss(ours, targets, None, temperature), share * theirs(other, targets)
    assert expected > 0
    torch.testing.assert_close(value, expected, rtol=1e-9, atol=0)
    value.backward()
    expected.backward()
    torch.testing.assert_close(ours.grad, other.grad, rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("temperature", [0.07, 0.1, 1.0])
def test_classes_give_supcon(make_clusters, seed: int, temperature: float) -> None:
    points, targets = make_clusters(seed, 30, 6, 4)
    theirs = losses.SupConLoss(temperature=temperature)
    assert_equal_with_gradients(3 * points.double(), targets, temperature, theirs, 1.0)


def test_classes_of_one_leave_the_average_of_supcon(make_clusters) -> None:
    points, targets = make_clusters(0, 30, 6, 4)
    targets[:6] = torch.arange(10, 16)
    assert_equal_with_gradients(points.double(), targets, 0.1, losses.SupConLoss(temperature=0.1), 24 / 30)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("temperature", [0.07, 0.5])
def test_two_views_give_nt_xent(make_clusters, seed: int, temperature: float) -> None:
    points, _ = make_clusters(seed, 24, 6, 12)
    examples = torch.arange(12)
    theirs = losses.NTXentLoss(temperature=temperature)
    assert_equal_with_gradients(2 * points.double(), torch.cat([examples, examples]), temperature, theirs, 1.0)
