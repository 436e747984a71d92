"""Triplet and angular losses against those of pytorch-metric-learning where definitions coincide.

Their triplet loss is told our triplets, squared distances and a mean over all of them; by default it takes distances as
they are, and averages over the triplets that violate the margin. Their semi-hard window is closed at its far end.
Their angular loss drops the constant, as ours does unless told otherwise. It scales anchors and positives to unit
length but not negatives, so that it is given unit rows. It takes -1 for a class, so that it is given labelled rows.
"""

from __future__ import annotations

import pytest
import torch

from semimetric.losses import batch_angular_loss, triplet_loss
from semimetric.mining import labelled_masks, semi_hard_negatives

reason = "the comparison with pytorch-metric-learning needs pytorch-metric-learning installed"
losses = pytest.importorskip("pytorch_metric_learning.losses", reason=reason)
miners = pytest.importorskip("pytorch_metric_learning.miners", reason=reason)
distances = pytest.importorskip("pytorch_metric_learning.distances", reason=reason)
reducers = pytest.importorskip("pytorch_metric_learning.reducers", reason=reason)

MARGINS = [0.1, 0.2, 1.0]


def squared():
    return distances.LpDistance(normalize_embeddings=True, p=2, power=2)


def unit(rows):
    return torch.nn.functional.normalize(rows, dim=1)


def assert_equal_with_gradients(points, ours, theirs):
    mine, other = points.clone().requires_grad_(), points.clone().requires_grad_()
    value, expected = ours(mine), theirs(other)
    assert expected > 0
    torch.testing.assert_close(value, expected, rtol=1e-9, atol=0)
    value.backward()
    expected.backward()
    torch.testing.assert_close(mine.grad, other.grad, rtol=1e-7, atol=1e-10)


def problem(make_clusters, seed, unlabelled=False):
    """Points of any length, their classes, draws, and the triplets (T,), (T,), (T,) that a margin chooses."""
    points, targets = make_clusters(seed, 24, 6, 4, spread=0.6)
    generator = torch.Generator().manual_seed(seed)
    points = points.double() * torch.rand(24, 1, generator=generator, dtype=torch.float64).add(0.5)
    targets[: 5 if unlabelled else 0] = -1
    draws = torch.rand(24, 24, generator=generator)

    def triplets(margin):
        chosen = semi_hard_negatives(torch.cdist(unit(points), unit(points)).square(), targets, draws, margin)
        anchors, positives = labelled_masks(targets)[0].nonzero().unbind(1)
        return anchors, positives, chosen[anchors, positives]

    return points, targets, draws, triplets


@pytest.mark.parametrize("unlabelled", [False, True])
@pytest.mark.parametrize("margin", MARGINS)
@pytest.mark.parametrize("seed", range(3))
def test_triplet_loss_of_the_chosen_triplets(make_clusters, seed: int, margin: float, unlabelled: bool) -> None:
    points, targets, draws, triplets = problem(make_clusters, seed, unlabelled)
    theirs = losses.TripletMarginLoss(margin=margin, distance=squared(), reducer=reducers.MeanReducer())
    assert_equal_with_gradients(
        points,
        lambda z: triplet_loss(z, targets, draws, margin),
        lambda z: theirs(z, targets, triplets(margin)),
    )


@pytest.mark.parametrize("margin", MARGINS)
@pytest.mark.parametrize("seed", range(3))
def test_semi_hard_choices_are_among_their_semi_hard_triplets(make_clusters, seed: int, margin: float) -> None:
    points, targets, _, triplets = problem(make_clusters, seed)
    miner = miners.TripletMarginMiner(margin=margin, type_of_triplets="semihard", distance=squared())
    semi_hard = set(zip(*(column.tolist() for column in miner(points, targets)), strict=True))
    pairs = {triplet[:2] for triplet in semi_hard}
    chosen = set(zip(*(column.tolist() for column in triplets(margin)), strict=True))
    assert pairs
    assert {triplet for triplet in chosen if triplet[:2] in pairs} <= semi_hard
    assert {triplet[:2] for triplet in chosen} >= pairs


@pytest.mark.parametrize("alpha", [20.0, 40.0, 55.0])
@pytest.mark.parametrize("seed", range(3))
def test_angular_loss_of_unit_rows(make_clusters, seed: int, alpha: float) -> None:
    points, targets, _, _ = problem(make_clusters, seed)
    theirs = losses.AngularLoss(alpha=alpha)
    assert_equal_with_gradients(
        points, lambda z: batch_angular_loss(z, targets, alpha), lambda z: theirs(unit(z), targets)
    )


def test_angular_loss_of_labelled_rows(make_clusters) -> None:
    points, targets, _, _ = problem(make_clusters, 0, unlabelled=True)
    known, theirs = targets >= 0, losses.AngularLoss(alpha=40.0)
    assert_equal_with_gradients(
        points, lambda z: batch_angular_loss(z, targets, 40.0), lambda z: theirs(unit(z)[known], targets[known])
    )
