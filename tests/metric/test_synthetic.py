from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize
from torch import Tensor
from torch.nn.functional import softplus

import semimetric.metric.synthetic as module
from semimetric.core.errors import InputError
from semimetric.metric import random_orthonormal
from semimetric.metric.synthetic import (
    SyntheticProblem,
    case_entropies,
    case_scores,
    case_slopes,
    centred_corners,
    minimize_synthetic,
    orthogonality_defect,
    squared_lengths,
    synthesis_start,
)

ALPHA = 40.0
PENALTY = 0.5
COINCIDENT = 3 * 0.2 * math.log(5) + math.log(2)
"""Entropy of three examples that are the same: p is 1/5 for each odd one and 1/2 for alike and for different."""


def draw(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def paper_scores(triplet: Tensor, synthesis: Tensor, factor: Tensor, alpha: float) -> list[Tensor]:
    """Losses of the five cases of one triplet (3, d), by concatenations and S (2d, d) as in the paper.

    In the order of this package: anchor, positive, negative odd, all alike, all different.
    """
    a, p, n = triplet
    t = math.tan(math.radians(alpha)) ** 2

    def d_s(u: Tensor) -> Tensor:
        return (synthesis.T @ u).square().sum()

    def d_l(u: Tensor) -> Tensor:
        return (factor.T @ synthesis.T @ u).square().sum()

    def both(upper: Tensor, lower: Tensor) -> Tensor:
        return torch.cat([upper, lower])

    scores = []
    for like, other, odd in ((p, n, a), (a, n, p), (a, p, n)):
        anchor, positive, negative = both(like, like), both(like, other), both(like, odd)
        side, median = anchor - positive, negative - (anchor + positive) / 2
        metric = softplus(d_l(side) - 4 * t * d_l(median))
        scores.append(metric + softplus(4 * t * d_s(median) - d_s(side)))
    side = both(a, p) - both(a, n)
    return [*scores, d_l(side) - d_s(side), d_s(side) - d_l(side)]


def paper_entropies(triplet: Tensor, synthesis: Tensor, factor: Tensor, alpha: float = ALPHA) -> Tensor:
    """(5,) -p log p, by the formula."""
    probabilities = [1 / (1 + torch.exp(score)) for score in paper_scores(triplet, synthesis, factor, alpha)]
    return torch.stack([-p * torch.log(p) for p in probabilities])


def problem(seed: int = 0, triplets: int = 30, d: int = 5, penalty: float = PENALTY) -> SyntheticProblem:
    stretch = torch.linspace(0.2, 0.8, d, dtype=torch.float64)
    points = draw(seed, 3 * triplets, d) * stretch
    return SyntheticProblem(centred_corners(points, torch.arange(3 * triplets).reshape(-1, 3)), ALPHA, penalty)


def start(seed: int = 0, d: int = 5, components: int = 3) -> tuple[Tensor, Tensor]:
    factor = random_orthonormal(d, components, torch.Generator().manual_seed(seed))
    return synthesis_start(factor), factor


@given(seed=st.integers(0, 1000), alpha=st.floats(10, 50))
def test_objective_is_a_loop_over_triplets_and_cases_of_concatenations(seed: int, alpha: float) -> None:
    triplets, synthesis, factor = draw(seed, 7, 3, 4) / 2, draw(seed + 1, 8, 4) / 2, draw(seed + 2, 4, 3) / 2
    total = sum(float(paper_entropies(triplet, synthesis, factor, alpha).sum()) for triplet in triplets) / 7
    total += PENALTY * float((factor.T @ factor - torch.eye(3)).square().sum())
    whole = SyntheticProblem(triplets - triplets.mean(1, keepdim=True), alpha, PENALTY)
    found = whole.evaluate(torch.cat([synthesis[4:], factor], dim=1)).cost
    assert found == pytest.approx(total, rel=1e-10)


def test_upper_half_of_the_generator_has_no_effect() -> None:
    triplet, lower, factor = draw(0, 3, 4), draw(1, 4, 4), draw(2, 4, 4)
    found = [paper_entropies(triplet, torch.cat([upper, lower]), factor) for upper in (0 * lower, draw(3, 4, 4))]
    assert torch.allclose(*found, rtol=1e-12)


def test_without_synthesis_the_cases_are_about_the_examples_themselves() -> None:
    triplet, factor = draw(0, 3, 4), draw(1, 4, 2)
    a, p, n = triplet
    synthesis = torch.cat([torch.zeros(4, 4), torch.eye(4)]).double()
    odd = paper_scores(triplet, synthesis, factor, ALPHA)[2]
    side, median, t = a - p, n - (a + p) / 2, math.tan(math.radians(ALPHA)) ** 2
    metric = (factor.T @ side).square().sum() - 4 * t * (factor.T @ median).square().sum()
    plain = side.square().sum() - 4 * t * median.square().sum()
    assert float(odd) == pytest.approx(float(softplus(metric) + softplus(-plain)))
    corners = triplet - triplet.mean(0)
    found = case_scores(squared_lengths(corners)[None], squared_lengths(corners @ factor)[None], ALPHA)
    assert float(found[0, 2]) == pytest.approx(float(odd))


def test_exchanging_positive_and_negative_exchanges_their_cases() -> None:
    synthetic, embedded = draw(0, 9, 3).square(), draw(1, 9, 3).square()
    found, exchanged = (case_scores(synthetic[:, rows], embedded[:, rows], ALPHA) for rows in ([0, 1, 2], [0, 2, 1]))
    assert torch.allclose(exchanged, found[:, [0, 2, 1, 3, 4]])
    assert not torch.allclose(exchanged, found)
    sums = [case_entropies(scores)[:, 1:3].sum(1) for scores in (found, exchanged)]
    assert torch.allclose(*sums)


@pytest.mark.parametrize("case", range(5))
def test_gradients_of_each_case_are_those_of_the_formula(case: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """S, L and the examples; the last by torch, from the same short form that ``loss`` uses."""
    triplets, synthesis, factor = (draw(case + i, *shape) / 2 for i, shape in enumerate(((6, 3, 4), (8, 4), (4, 3))))
    wanted = [tensor.clone().requires_grad_() for tensor in (triplets, synthesis, factor)]
    torch.stack([paper_entropies(one, *wanted[1:])[case] for one in wanted[0]]).mean().backward()

    chosen = torch.nn.functional.one_hot(torch.tensor(case), 5).double()
    monkeypatch.setattr(module, "case_slopes", lambda scores: case_slopes(scores) * chosen)
    whole = SyntheticProblem(triplets - triplets.mean(1, keepdim=True), ALPHA, 0.0)
    point = torch.cat([synthesis[4:], factor], dim=1)
    expected = whole.project(point, torch.cat([wanted[1].grad[4:], wanted[2].grad], dim=1))
    assert torch.allclose(whole.gradient(point, whole.evaluate(point)), expected, atol=1e-12)
    assert not wanted[1].grad[:4].any()

    features = triplets.reshape(-1, 4).clone().requires_grad_()
    corners = centred_corners(features @ synthesis[4:], torch.arange(18).reshape(6, 3))
    scores = case_scores(squared_lengths(corners), squared_lengths(corners @ factor), ALPHA)
    case_entropies(scores)[:, case].mean().backward()
    assert torch.allclose(features.grad.reshape(6, 3, 4), wanted[0].grad, atol=1e-12)


@given(seed=st.integers(0, 1000))
def test_gradient_is_the_slope_along_the_walk(seed: int) -> None:
    whole = problem(seed, 12)
    point = whole.walk(draw(seed, 5, 8) / 2, draw(seed, 5, 8), 0.0)
    direction = whole.project(point, draw(seed + 1, 5, 8))
    costs = [whole.evaluate(whole.walk(point, direction, step)).cost for step in (-1e-5, 1e-5)]
    gradient = whole.gradient(point, whole.evaluate(point))
    assert module.dot(gradient, direction) == pytest.approx((costs[1] - costs[0]) / 2e-5, rel=1e-5, abs=1e-8)
    assert module.dot(whole.parts(gradient)[0], whole.parts(point)[0]) == pytest.approx(0.0, abs=1e-10)


def test_entropy_is_finite_and_not_monotone() -> None:
    scores = torch.tensor([-1e5, -2.0, 0.0, math.log(math.e - 1), 3.0, 1e5], dtype=torch.float64)
    found = case_entropies(scores)
    naive = [-p * math.log(p) for p in (1 / (1 + math.exp(float(score))) for score in scores[1:5])]
    assert found[1:5].tolist() == pytest.approx(naive)
    assert found[[0, -1]].tolist() == [0.0, 0.0]
    assert float(found.max()) == float(found[3]) == pytest.approx(1 / math.e)
    slopes = case_slopes(scores)
    assert slopes.sign().tolist() == pytest.approx([0, 1, 1, float(slopes[3].sign()), -1, 0])
    assert abs(float(slopes[3])) < 1e-15


def test_a_huge_generator_gives_finite_numbers() -> None:
    whole = problem(0)
    synthesis, factor = start()
    point = torch.cat([1e3 * synthesis, factor], dim=1)
    at = whole.evaluate(point)
    assert math.isfinite(at.cost)
    assert torch.isfinite(whole.gradient(point, at)).all()


def test_the_objective_does_not_know_which_directions_the_metric_keeps() -> None:
    whole, rotation = problem(0), random_orthonormal(5, 5, torch.Generator().manual_seed(3))
    synthesis, factor = draw(1, 5, 5), draw(2, 5, 3)
    costs = [
        whole.evaluate(torch.cat([synthesis @ turn, turn.T @ factor], dim=1)).cost
        for turn in (torch.eye(5, dtype=torch.float64), rotation)
    ]
    assert costs[0] == pytest.approx(costs[1], rel=1e-12)


@pytest.mark.parametrize("components", [3, 5])
def test_start_favours_neither_alike_nor_different(components: int) -> None:
    synthesis, factor = start(components=components)
    assert float(torch.linalg.matrix_norm(synthesis)) == pytest.approx(math.sqrt(5))
    corners = problem(0).corners @ synthesis
    scores = case_scores(squared_lengths(corners), squared_lengths(corners @ factor), ALPHA)
    assert torch.allclose(scores[:, 3:], torch.zeros(30, 2).double(), atol=1e-12)
    if components == 5:
        assert torch.allclose(synthesis, torch.eye(5).double())


@pytest.mark.parametrize("components", [1, 3, 5])
@pytest.mark.parametrize("seed", range(3))
def test_solver_descends_and_keeps_the_norm(seed: int, components: int) -> None:
    whole = problem(seed)
    result = minimize_synthetic(whole, *start(seed, components=components), max_iterations=30)
    assert len(result.costs) == 31
    assert all(later <= earlier for earlier, later in pairwise(result.costs))
    assert result.costs[-1] < result.costs[0] - 0.1
    assert result.costs[-1] == whole.evaluate(torch.cat([result.synthesis, result.factor], dim=1)).cost
    assert float(torch.linalg.matrix_norm(result.synthesis)) == pytest.approx(math.sqrt(5), rel=1e-12)


def general_end(whole: SyntheticProblem, begin: Tensor) -> tuple[Tensor, float]:
    """Where a general solver ends, and J there; the norm of S is fixed for it by scaling what it tries."""

    def objective(flat):
        given = torch.from_numpy(flat).reshape(begin.shape)
        point = whole.walk(given, given, 0.0)
        at = whole.evaluate(point)
        synthesis, factor = whole.parts(whole.gradient(point, at))
        shrunk = synthesis * (torch.linalg.matrix_norm(whole.parts(point)[0]) / torch.linalg.matrix_norm(given[:, :4]))
        return at.cost, torch.cat([shrunk, factor], dim=1).flatten().numpy()

    options = {"maxiter": 2000, "ftol": 1e-15, "gtol": 1e-8}
    found = minimize(objective, begin.flatten().numpy(), jac=True, method="L-BFGS-B", options=options)
    return torch.from_numpy(found.x).reshape(begin.shape), found.fun


@pytest.mark.parametrize("seed", range(1, 5))
def test_solver_ends_as_low_as_a_general_one(seed: int) -> None:
    """J has many minima: each solver is content where the other ends, and the lowest of a few ends is the same."""
    whole = problem(seed, 20, 4)
    begins = [torch.cat(start(seed, 4, 4), dim=1), *(draw(100 * seed + trial, 4, 8) for trial in range(1, 6))]
    ours, theirs = [], []
    for begin in begins:
        found = minimize_synthetic(whole, *whole.parts(begin), 2000)
        ours.append(found.costs[-1])
        assert found.costs[-1] - general_end(whole, torch.cat([found.synthesis, found.factor], dim=1))[1] < 1e-9
        other, cost = general_end(whole, begin)
        theirs.append(cost)
        assert cost - minimize_synthetic(whole, *whole.parts(other), 100).costs[-1] < 1e-9
    assert min(ours) == pytest.approx(min(theirs), abs=1e-7)
    assert max(ours) > min(ours) + 1e-3


def test_solver_goes_on_where_it_ended() -> None:
    whole, begin = problem(1), start(1)
    first = minimize_synthetic(whole, *begin, max_iterations=10)
    second = minimize_synthetic(whole, first.synthesis, first.factor, 10)
    assert second.costs[0] == pytest.approx(first.costs[-1], rel=1e-12)
    assert second.costs[-1] < first.costs[-1]


def test_a_thousand_iterations_stay_finite() -> None:
    whole = problem(2)
    result = minimize_synthetic(whole, *start(2), max_iterations=1000)
    assert all(math.isfinite(cost) for cost in result.costs)
    assert torch.isfinite(result.factor).all()
    assert float(torch.linalg.matrix_norm(result.synthesis)) == pytest.approx(math.sqrt(5), rel=1e-12)


def test_turning_the_examples_turns_the_metric_and_changes_no_distance() -> None:
    rotation = random_orthonormal(5, 5, torch.Generator().manual_seed(9))
    corners, (_, factor) = problem(3).corners, start(3)
    turned = rotation.T @ factor
    plain = minimize_synthetic(SyntheticProblem(corners, ALPHA, PENALTY), synthesis_start(factor), factor)
    other = minimize_synthetic(SyntheticProblem(corners @ rotation, ALPHA, PENALTY), synthesis_start(turned), turned)
    lengths = [squared_lengths(c @ r.factor) for c, r in ((corners, plain), (corners @ rotation, other))]
    assert torch.allclose(*lengths, rtol=1e-8)
    assert not torch.allclose(lengths[0], squared_lengths(corners @ factor), rtol=1e-2)


def test_examples_that_are_the_same_leave_everything_as_it_is() -> None:
    whole = SyntheticProblem(torch.zeros(4, 3, 5), ALPHA, PENALTY)
    synthesis, factor = start()
    result = minimize_synthetic(whole, synthesis, factor)
    assert result.costs == pytest.approx((COINCIDENT,))
    assert torch.allclose(result.synthesis, synthesis)
    assert torch.equal(result.factor, factor)


def test_penalty_keeps_columns_orthonormal() -> None:
    defects = [
        float(orthogonality_defect(minimize_synthetic(problem(0, penalty=penalty), *start(), 100).factor))
        for penalty in (0.01, 0.5, 50.0)
    ]
    assert defects[0] > defects[1] > defects[2]
    assert defects[2] < 0.05


def test_nothing_is_as_large_as_a_matrix_for_each_triplet(largest_tensor) -> None:
    whole, begin = problem(0, 200, 40), start(0, 40, 20)
    with largest_tensor() as seen:
        minimize_synthetic(whole, *begin, max_iterations=3)
    assert seen.entries == 3 * 200 * 40


@pytest.mark.parametrize("shape", [(0, 3, 4), (5, 2, 4), (5, 3)])
def test_what_are_no_triplets_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match="corners must be at least one triplet"):
        SyntheticProblem(torch.zeros(shape), ALPHA, PENALTY)


@pytest.mark.parametrize("alpha", [0.0, 90.0, math.nan])
def test_what_is_no_angle_is_refused(alpha: float) -> None:
    with pytest.raises(InputError, match="alpha is"):
        SyntheticProblem(torch.zeros(1, 3, 4), alpha, PENALTY)


def test_a_search_that_finds_nothing_lower_leaves_the_start() -> None:
    """With so stiff a penalty even the shortest step tried is too long; a second search, afresh, is the last."""
    synthesis, factor = start()
    result = minimize_synthetic(problem(0, penalty=1e9), synthesis, factor)
    assert len(result.costs) == 3
    assert len(set(result.costs)) == 1
    assert torch.allclose(result.synthesis, synthesis)
    assert torch.equal(result.factor, factor)
