import itertools
import math

import numpy as np
import pytest
import torch
from helpers.draws import draws
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize

from semimetric.core.errors import InputError
from semimetric.metric.closed_forms import logdet_divergence
from semimetric.metric.itml import (
    FeatureSpace,
    PairBounds,
    PointSpace,
    choose_pairs,
    information_theoretic_prior,
    metric_of_duals,
    project_cyclically,
)

sizes = st.tuples(st.integers(0, 10_000), st.integers(1, 6), st.integers(2, 4), st.integers(1, 4))


def make(seed, d, classes, per_class, spread=1.0):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(classes * per_class) % classes
    centres = torch.randn(classes, d, generator=generator, dtype=torch.float64)
    return centres[labels] + spread * torch.randn(len(labels), d, generator=generator, dtype=torch.float64), labels


def all_pairs(classes, similar_bound, dissimilar_bound):
    return choose_pairs(torch.as_tensor(classes).sort().values, 10**6, similar_bound, dissimilar_bound)


def solve(points, constraints, slack=1.0, max_sweeps=10_000, tolerance=1e-12):
    solution = project_cyclically(points, constraints, slack, max_sweeps, tolerance)
    return metric_of_duals(points, constraints, solution.duals), solution


def slow_projections(points, constraints, slack, sweeps):
    """The updates of M as they are written, one pair after the other."""
    matrix, duals, bounds = np.eye(points.shape[1]), np.zeros(len(constraints.pairs)), constraints.bounds.copy()
    share = 1.0 if math.isinf(slack) else slack / (slack + 1)
    for _ in range(sweeps):
        for p, (i, j) in enumerate(constraints.pairs):
            v = points[i] - points[j]
            q = v @ matrix @ v
            image = np.outer(matrix @ v, matrix @ v)
            if q < 1e-12:
                continue
            if constraints.signs[p] > 0:
                a = min(duals[p], share * (1 / q - 1 / bounds[p]))
                bounds[p] = 1 / (1 / bounds[p] + a / slack)
                matrix = matrix + a / (1 - a * q) * image
            else:
                a = min(duals[p], share * (1 / bounds[p] - 1 / q))
                bounds[p] = 1 / (1 / bounds[p] - a / slack)
                matrix = matrix - a / (1 + a * q) * image
            duals[p] -= a
    return matrix, duals


def lengths_under(matrix, points, constraints):
    v = torch.from_numpy(points[constraints.pairs[:, 0]] - points[constraints.pairs[:, 1]])
    return torch.einsum("pd,de,pe->p", v, matrix, v)


@pytest.mark.parametrize("slack", [0.1, 1.0, math.inf])
@pytest.mark.parametrize(("d", "per_class"), [(12, 4), (3, 4), (5, 3)])
def test_equals_the_plain_projections(slack, d, per_class):
    points = make(0, d, 3, per_class, spread=0.5)[0].numpy()
    constraints = all_pairs(np.arange(3 * per_class) % 3, 0.5 * d, 1.5 * d)
    expected, duals = slow_projections(points, constraints, slack, sweeps=4)
    found, solution = solve(points, constraints, slack, max_sweeps=4, tolerance=0.0)
    assert np.abs(expected - np.eye(d)).max() > 0.1
    assert solution.sweeps == 4
    assert not solution.converged
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-8)
    np.testing.assert_allclose(solution.duals, duals, rtol=0, atol=1e-8)
    assert (solution.duals >= 0).all()


def test_both_spaces_see_the_same_lengths_and_images():
    points = make(1, 4, 3, 3)[0].numpy()
    few, many = PointSpace(points), FeatureSpace(points)
    for i, j in itertools.combinations(range(9), 2):
        assert few.squared_length(i, j) == pytest.approx(many.squared_length(i, j))
        np.testing.assert_allclose(few.image(i, j), points @ many.image(i, j), atol=1e-12)


@pytest.mark.parametrize(("sign", "bound"), [(1.0, 0.3), (-1.0, 9.0)])
def test_one_projection_without_slack_lands_on_the_bound(sign, bound):
    points = np.array([[1.0, 0.5, 0.0], [0.0, 0.0, 1.0]])
    constraints = PairBounds(np.array([[0, 1]]), np.array([sign]), np.array([bound]))
    matrix, _ = solve(points, constraints, math.inf, max_sweeps=1)
    assert lengths_under(matrix, points, constraints).item() == pytest.approx(bound, rel=1e-12)
    across = torch.tensor([0.5, -1.0, 0.0], dtype=torch.float64)
    torch.testing.assert_close(matrix @ across, across)


@pytest.mark.parametrize(("sign", "bound"), [(1.0, 9.0), (-1.0, 0.3)])
def test_what_is_not_violated_is_left_alone(sign, bound):
    points = make(2, 3, 2, 1)[0].numpy()
    constraints = PairBounds(
        np.array([[0, 1]]), np.array([sign]), np.array([bound * np.square(np.diff(points, axis=0)).sum()])
    )
    matrix, solution = solve(points, constraints)
    assert torch.equal(matrix, torch.eye(3, dtype=torch.float64))
    assert (solution.sweeps, solution.converged) == (1, True)


def test_no_feasible_perturbation_is_nearer_to_the_identity():
    points = make(1, 3, 2, 2, spread=0.3)[0].numpy()
    mean = lengths_under(torch.eye(3, dtype=torch.float64), points, all_pairs(np.arange(4) % 2, 1.0, 1.0)).mean().item()
    constraints = all_pairs(np.arange(4) % 2, 0.5 * mean, mean)
    matrix, solution = solve(points, constraints, math.inf)
    signs, bounds = torch.from_numpy(constraints.signs), torch.from_numpy(constraints.bounds)

    def excess(candidate):
        return (signs * (lengths_under(candidate, points, constraints) / bounds - 1)).max().item()

    identity = torch.eye(3, dtype=torch.float64)
    assert solution.converged
    assert excess(identity) > 0.1
    assert excess(matrix) < 1e-8
    best, feasible = logdet_divergence(matrix, identity), 0
    factor = torch.linalg.cholesky(matrix)
    for seed in range(2000):
        tangent = torch.randn(3, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        candidate = factor @ torch.linalg.matrix_exp(0.1 * (tangent + tangent.T)) @ factor.T
        if excess(candidate) <= 0:
            feasible += 1
            assert logdet_divergence(candidate, identity) > best - 1e-9
    assert feasible > 20


@pytest.mark.parametrize("slack", [0.2, 1.0, 5.0])
def test_with_slack_the_objective_is_that_of_a_general_solver(slack):
    """The slack of a violated pair costs gamma times the divergence of its length from its bound."""
    d, points = 4, make(4, 4, 3, 3)[0].numpy()
    constraints = all_pairs(np.arange(9) % 3, 2.0, 8.0)
    signs, bounds = torch.from_numpy(constraints.signs), torch.from_numpy(constraints.bounds)

    def objective(candidate):
        ratios = lengths_under(candidate, points, constraints) / bounds
        costs = torch.where(signs * (ratios - 1) > 0, ratios - ratios.log() - 1, 0.0)
        return candidate.trace() - torch.logdet(candidate) - d + slack * costs.sum()

    def value_and_gradient(flat):
        factor = torch.from_numpy(flat).reshape(d, d).clone().requires_grad_()
        value = objective(factor @ factor.T)
        return value.item(), torch.autograd.grad(value, factor)[0].flatten().numpy()

    options = {"maxiter": 5000, "ftol": 1e-15}
    found = minimize(value_and_gradient, np.eye(d).ravel(), jac=True, method="L-BFGS-B", options=options)
    matrix, solution = solve(points, constraints, slack)
    assert solution.converged
    assert objective(matrix).item() == pytest.approx(found.fun, abs=1e-7)


def test_stays_positive_definite_after_many_updates():
    features, classes = make(5, 20, 5, 8, spread=2.0)
    result = information_theoretic_prior(features, classes, max_sweeps=30, tolerance=0.0)
    assert result.sweeps == 30  # of 780 pairs, more than a third of which are violated each time
    assert not result.converged
    assert torch.linalg.eigvalsh(result.matrix)[0] > 1e-3
    assert torch.equal(result.matrix, result.matrix.T)


@draws(25)
@given(size=sizes, shift=st.floats(-3, 3), scale=st.floats(0.01, 100))
def test_is_a_metric_that_turns_with_the_features_and_is_blind_to_place_and_scale(size, shift, scale):
    features, classes = make(*size)
    result = information_theoretic_prior(features, classes, max_sweeps=10)
    d = features.shape[1]
    assert result.matrix.dtype == torch.float64
    assert torch.equal(result.matrix, result.matrix.T)
    assert torch.linalg.eigvalsh(result.matrix)[0] > 0
    assert result.matrix.trace().item() == pytest.approx(d)
    generator = torch.Generator().manual_seed(size[0])
    turn = torch.linalg.qr(torch.randn(d, d, generator=generator, dtype=torch.float64)).Q
    again = information_theoretic_prior((scale * features + shift) @ turn, classes, max_sweeps=10)
    torch.testing.assert_close(again.matrix, turn.T @ result.matrix @ turn, rtol=0, atol=1e-8)
    assert again.similar_bound == pytest.approx(result.similar_bound)
    assert again.dissimilar_bound == pytest.approx(result.dissimilar_bound)


@pytest.mark.parametrize("seed", range(5))
def test_once_converged_the_order_of_examples_and_the_names_of_classes_do_not_matter(seed):
    features, classes = make(seed, 4 + seed, 3, 4)
    result = information_theoretic_prior(features, classes, max_sweeps=3000, tolerance=1e-9)
    order = torch.randperm(len(features), generator=torch.Generator().manual_seed(seed))
    again = information_theoretic_prior(features[order], 50 - 3 * classes[order], max_sweeps=3000, tolerance=1e-9)
    assert result.converged
    assert again.converged
    torch.testing.assert_close(again.matrix, result.matrix, rtol=0, atol=1e-6)


def test_bounds_are_percentiles_of_squared_distances():
    features, classes = make(6, 4, 3, 5)
    squares = torch.pdist(features).square()
    squares *= 2 / squares.mean()
    result = information_theoretic_prior(features, classes)
    assert result.similar_bound == pytest.approx(squares.quantile(0.05).item())
    assert result.dissimilar_bound == pytest.approx(squares.quantile(0.95).item())
    assert not result.widened


def test_brings_classes_together_and_converges_where_they_are_separable():
    features, classes = make(7, 30, 5, 6, spread=0.7)
    result = information_theoretic_prior(features, classes)
    assert result.converged

    def ratio(matrix):
        v = features[:, None] - features[None]
        distances = torch.einsum("ijd,de,ije->ij", v, matrix, v)
        same = classes[:, None] == classes[None]
        return distances[same].mean() / distances[~same].mean()

    assert ratio(result.matrix) < 0.6 * ratio(torch.eye(30, dtype=torch.float64))


def test_all_pairs_are_constrained_when_there_are_few():
    classes = np.array([0, 0, 0, 4, 4, 9])
    chosen = choose_pairs(torch.as_tensor(classes), 15, 1.0, 2.0)
    assert {tuple(pair) for pair in chosen.pairs.tolist()} == set(itertools.combinations(range(6), 2))
    same = classes[chosen.pairs[:, 0]] == classes[chosen.pairs[:, 1]]
    np.testing.assert_array_equal(chosen.signs, np.where(same, 1.0, -1.0))
    np.testing.assert_array_equal(chosen.bounds, np.where(same, 1.0, 2.0))


@draws(50)
@given(counts=st.lists(st.integers(1, 8), min_size=1, max_size=8), most=st.integers(1, 60))
def test_chosen_pairs_are_distinct_right_and_half_of_each_kind(counts, most):
    classes = np.repeat(np.arange(len(counts)), counts)
    chosen = choose_pairs(torch.as_tensor(classes), most, 1.0, 2.0)
    left, right = chosen.pairs.T
    assert (left < right).all()
    assert len({tuple(pair) for pair in chosen.pairs.tolist()}) == len(chosen.pairs)
    np.testing.assert_array_equal(chosen.signs > 0, classes[left] == classes[right])
    similar = sum(count * (count - 1) // 2 for count in counts)
    dissimilar = len(classes) * (len(classes) - 1) // 2 - similar
    assert len(chosen.pairs) == min(most, similar + dissimilar)
    assert (chosen.signs > 0).sum() >= min(similar, most // 2)
    assert (chosen.signs < 0).sum() >= min(dissimilar, most // 2)


def test_chosen_pairs_are_spread_over_classes_and_examples():
    classes = np.repeat(np.arange(20), 50)
    chosen = choose_pairs(torch.as_tensor(classes), 2000, 1.0, 2.0)
    similar, dissimilar = chosen.pairs[chosen.signs > 0], chosen.pairs[chosen.signs < 0]
    assert len(similar) == len(dissimilar) == 1000
    np.testing.assert_array_equal(np.bincount(classes[similar[:, 0]]), np.full(20, 50))
    met = np.zeros((20, 20), dtype=int)
    np.add.at(met, (classes[dissimilar[:, 0]], classes[dissimilar[:, 1]]), 1)
    met = met[np.triu_indices(20, 1)]  # 5.3 on average
    assert met.max() <= 12
    assert (met == 0).mean() < 0.02
    assert np.bincount(chosen.pairs.ravel()).max() <= 12  # 4 on average
    assert (np.abs(np.cumsum(chosen.signs)) <= 1).all()


def test_many_examples_do_not_list_their_pairs():
    features = torch.randn(30_000, 2, generator=torch.Generator().manual_seed(0))
    result = information_theoretic_prior(features, torch.arange(30_000) % 3, max_pairs=100, max_sweeps=2)
    assert result.matrix.isfinite().all()


def test_coinciding_percentiles_are_widened():
    result = information_theoretic_prior(torch.eye(4), torch.tensor([0, 0, 1, 1]))
    assert result.widened
    assert (result.similar_bound, result.dissimilar_bound) == (pytest.approx(1.8), pytest.approx(2.2))
    v = torch.tensor([[1.0, -1, 0, 0], [1, 0, -1, 0]], dtype=torch.float64)
    near, far = torch.einsum("pd,de,pe->p", v, result.matrix, v)
    assert near < far


def test_duplicates_are_skipped():
    features, classes = make(8, 5, 3, 4)
    doubled, labels = torch.cat([features, features, features]), torch.cat([classes, classes, (classes + 1) % 3])
    result = information_theoretic_prior(doubled, labels)
    assert result.matrix.isfinite().all()
    assert result.similar_bound > 0.01
    assert torch.linalg.eigvalsh(result.matrix)[0] > 0


@pytest.mark.parametrize("count", [1, 5])
def test_equal_examples_leave_the_identity(count):
    result = information_theoretic_prior(torch.full((count, 3), 0.1), torch.arange(count) // 2)
    torch.testing.assert_close(result.matrix, torch.eye(3, dtype=torch.float64))
    assert result.converged


@pytest.mark.parametrize("classes", [torch.zeros(6, dtype=torch.int64), torch.arange(6)])
def test_pairs_of_one_kind_only(classes):
    features, _ = make(9, 3, 2, 3)
    result = information_theoretic_prior(features, classes)
    assert torch.linalg.eigvalsh(result.matrix)[0] > 0
    assert (result.matrix - torch.eye(3, dtype=torch.float64)).abs().max() > 0.01


def test_float32_and_gradients_are_taken():
    features, classes = make(10, 4, 2, 3)
    result = information_theoretic_prior(features.float().requires_grad_(), classes)
    assert not result.matrix.requires_grad
    torch.testing.assert_close(result.matrix, information_theoretic_prior(features, classes).matrix, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("argument", "value"),
    [("slack", 0.0), ("slack", math.nan), ("max_pairs", 0), ("max_sweeps", 0), ("tolerance", -1.0)],
)
def test_refuses_settings(argument, value):
    features, classes = make(11, 3, 2, 2)
    with pytest.raises(InputError, match=argument):
        information_theoretic_prior(features, classes, **{argument: value})


def test_refuses_unlabelled_examples():
    with pytest.raises(InputError, match="unlabelled"):
        information_theoretic_prior(torch.eye(3), torch.tensor([0, -1, 0]))
