from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers.draws import draws
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from semimetric.core.errors import InputError
from semimetric.metric import Metric, whitening, within_class_share, within_class_whitening


def noisy_classes(seed: int = 0, per_class: int = 60, d: int = 12) -> tuple[Tensor, Tensor]:
    """Five classes that differ in the first three columns, under large noise in the next three."""
    generator = torch.Generator().manual_seed(seed)
    targets = torch.arange(5).repeat(per_class)
    centres = torch.zeros(5, d)
    centres[:, :3] = torch.randn(5, 3, generator=generator)
    noise = torch.randn(len(targets), d, generator=generator) * 0.1
    noise[:, 3:6] *= 30
    return centres[targets] + noise, targets


def brute_force_within(points: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
    """Sum over classes of the weighted outer products about the class mean, over the sum of the weights."""
    total = torch.zeros(points.shape[1], points.shape[1], dtype=torch.float64)
    for target in targets.unique():
        mine = targets == target
        mean = (points[mine] * weights[mine, None]).sum(0) / weights[mine].sum()
        for row, weight in zip(points[mine], weights[mine], strict=True):
            total += weight * torch.outer(row - mean, row - mean)
    return total / weights.sum()


@draws(20)
@given(seed=st.integers(0, 1000), shrinkage=st.floats(0.01, 10.0), width=st.sampled_from([6, 50]))
def test_all_components_give_the_inverse_of_the_shrunk_covariance_within_classes(
    seed: int, shrinkage: float, width: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    points = torch.randn(40, width, generator=generator, dtype=torch.float64)
    targets = torch.randint(4, (40,), generator=generator)
    weights = torch.rand(40, generator=generator, dtype=torch.float64) + 0.01
    within = brute_force_within(points, targets, weights)
    inverse = torch.linalg.inv(within + shrinkage * within.trace() / width * torch.eye(width, dtype=torch.float64))
    matrix = within_class_whitening(points, targets, weights, width, shrinkage).matrix
    torch.testing.assert_close(matrix / matrix.trace(), inverse / inverse.trace())


def test_with_fewer_points_than_dimensions_the_first_components_are_principal() -> None:
    generator = torch.Generator().manual_seed(3)
    points = torch.randn(20, 30, generator=generator, dtype=torch.float64)
    targets, weights = torch.arange(20) % 4, torch.ones(20)
    whole = within_class_whitening(points, targets, weights, 30).transform(points - points.mean(0))
    variances = whole.square().sum(0)
    assert bool((variances[:-1] >= variances[1:] - 1e-9).all())
    assert float(variances[19:].max()) == pytest.approx(0.0, abs=1e-9)
    few = within_class_whitening(points, targets, weights, 5).transform(points - points.mean(0))
    torch.testing.assert_close(
        torch.cdist(few, few) / few.norm(), torch.cdist(*[whole[:, :5]] * 2) / whole[:, :5].norm()
    )


def test_it_keeps_how_far_points_lie_from_their_mean() -> None:
    points, targets = noisy_classes()
    metric = within_class_whitening(points, targets, torch.ones(len(points)), 4)
    centred = points - points.mean(0)
    torch.testing.assert_close(metric.transform(centred).square().sum(), centred.square().sum(), rtol=1e-4, atol=0)


@pytest.mark.parametrize("rows", [1, 7, 299])
def test_blocks_of_rows_sum_to_the_whole(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    points, targets = noisy_classes()
    weights = torch.rand(len(points), generator=torch.Generator().manual_seed(1))
    ways = {
        "within": lambda: within_class_whitening(points, targets, weights, 4),
        "all": lambda: whitening(points, 4),
        "principal": lambda: Metric.principal(points, 4),
    }
    whole = {name: way().matrix for name, way in ways.items()}
    share = within_class_share(points, targets, weights)
    monkeypatch.setattr("semimetric.metric.mahalanobis.BLOCK_ROWS", rows)
    for name, way in ways.items():
        assert torch.allclose(way().matrix, whole[name], rtol=1e-9, atol=1e-9), name
    assert within_class_share(points, targets, weights) == pytest.approx(share, rel=1e-12)


def test_directions_in_which_classes_vary_are_shrunk_and_those_that_tell_them_apart_are_kept() -> None:
    points, targets = noisy_classes()
    weights = torch.ones(len(points))
    within = within_class_whitening(points, targets, weights, 3, shrinkage=0.01)
    principal = Metric.principal(points, 3)
    shares = [within_class_share(metric.transform(points), targets, weights) for metric in (within, principal)]
    assert shares[0] < 0.1 < 0.9 < shares[1]


def test_small_differences_of_large_numbers_are_no_rounding() -> None:
    points, targets = noisy_classes()
    far = 0.01 * points + 100
    weights = torch.ones(len(points))
    near, distant = (
        within_class_share(within_class_whitening(x, targets, weights, 3).transform(x), targets, weights)
        for x in (points, far)
    )
    assert near == pytest.approx(distant, abs=0.02)


def test_examples_without_weight_say_nothing() -> None:
    points, targets = noisy_classes()
    weights = torch.ones(len(points))
    weights[::7] = 0
    wrong = torch.where(weights == 0, (targets + 1) % 5, targets)
    right, also = (within_class_whitening(points, names, weights, 3) for names in (targets, wrong))
    torch.testing.assert_close(right.matrix, also.matrix)


@pytest.mark.parametrize("what", ["one example for each class", "constant features", "no weights at all"])
def test_where_nothing_varies_within_classes_principal_components_are_left(what: str) -> None:
    points, targets = noisy_classes()
    weights = torch.ones(len(points))
    if what == "one example for each class":
        targets = torch.arange(len(points))
    elif what == "constant features":
        points = torch.full_like(points, 3.0)
    else:
        weights = torch.zeros_like(weights)
    metric = within_class_whitening(points, targets, weights, 4)
    torch.testing.assert_close(metric.factor, Metric.principal(points, 4).factor)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"n_components": 0}, "n_components is 0"),
        ({"n_components": 13}, "n_components is 13"),
        ({"shrinkage": 0.0}, "shrinkage must be"),
        ({"shrinkage": float("nan")}, "shrinkage must be"),
        ({"weights": torch.ones(3)}, r"one each for 300 features, got shapes \(300,\) and \(3,\)"),
    ],
)
def test_bad_settings_are_named(changes: dict[str, Any], sentence: str) -> None:
    points, targets = noisy_classes()
    with pytest.raises(InputError, match=sentence):
        within_class_whitening(points, targets, **({"n_components": 3, "weights": torch.ones(len(points))} | changes))
