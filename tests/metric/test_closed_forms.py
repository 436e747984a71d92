import math

import pytest
import torch
from helpers.draws import draws
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize

from semimetric.core.errors import InputError
from semimetric.metric.closed_forms import (
    CAP_SHARE,
    largest_weight,
    logdet_divergence,
    logdet_proximal,
    minimize_with_unit_determinant,
    project_psd,
)

sizes = st.tuples(st.integers(0, 10_000), st.integers(1, 7))


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def symmetric(d, seed=0):
    matrix = randn(d, d, seed=seed)
    return (matrix + matrix.T) / 2


def positive(d, seed=0, rank=None):
    factor = randn(d, d if rank is None else rank, seed=seed)
    return factor @ factor.T + (0.1 * torch.eye(d) if rank is None else 0)


def rotation(d, seed=0):
    return torch.linalg.qr(randn(d, d, seed=seed)).Q


def eye(d):
    return torch.eye(d, dtype=torch.float64)


def assert_metric(matrix):
    assert matrix.dtype == torch.float64
    assert torch.equal(matrix, matrix.T)
    assert torch.linalg.eigvalsh(matrix)[0] > -1e-10


def lowest_objective(objective, d, seed=0):
    """Minimise over M = C C^T, C any matrix, by a general first-order method that knows nothing of the problem."""

    def value_and_gradient(flat):
        factor = torch.from_numpy(flat).reshape(d, d).clone().requires_grad_()
        value = objective(factor @ factor.T)
        (gradient,) = torch.autograd.grad(value, factor)
        return value.item(), gradient.flatten().numpy()

    start = (eye(d) + 0.1 * randn(d, d, seed=seed)).flatten().numpy()
    found = minimize(value_and_gradient, start, jac=True, method="L-BFGS-B", options={"maxiter": 5000, "ftol": 1e-15})
    return found.fun


@draws(30)
@given(size=sizes)
def test_projection_is_the_nearest_positive_matrix(size):
    seed, d = size
    matrix = symmetric(d, seed)
    projected = project_psd(matrix)
    assert_metric(projected)
    torch.testing.assert_close(project_psd(projected), projected, rtol=0, atol=1e-12)
    # Of a projection onto a cone the rest is in the polar cone, and orthogonal to the projection.
    rest = projected - matrix
    assert torch.linalg.eigvalsh(rest)[0] > -1e-10
    assert (rest * projected).sum().abs() < 1e-10


@draws(30)
@given(size=sizes)
def test_largest_weight_is_where_definiteness_ends(size):
    seed, d = size
    base, subtracted = positive(d, seed), positive(d, seed + 1)
    weight = largest_weight(base, subtracted)
    assert torch.linalg.eigvalsh(base - 0.999 * weight * subtracted)[0] > 0
    assert torch.linalg.eigvalsh(base - 1.001 * weight * subtracted)[0] < 0
    assert largest_weight(base, 4 * subtracted) == pytest.approx(weight / 4)


def test_nothing_to_subtract_allows_any_weight():
    assert largest_weight(positive(4), torch.zeros(4, 4)) == math.inf
    assert largest_weight(positive(4), -positive(4, seed=1, rank=2)) == math.inf
    assert largest_weight(positive(4), -positive(4, seed=1)) == math.inf


def test_largest_weight_refuses_a_singular_base():
    with pytest.raises(InputError, match="base"):
        largest_weight(-eye(3), eye(3))


@draws(30)
@given(size=sizes)
def test_unit_determinant_minimizer(size):
    seed, d = size
    form = positive(d, seed)
    matrix, _, floored = minimize_with_unit_determinant(form, 1e-9)
    assert_metric(matrix)
    assert floored == 0
    assert torch.logdet(matrix).abs() < 1e-9
    expected = d * math.exp(torch.logdet(form).item() / d)
    assert torch.trace(matrix @ form).item() == pytest.approx(expected)
    scaled, *_ = minimize_with_unit_determinant(3.7 * form, 1e-9)
    torch.testing.assert_close(scaled, matrix, rtol=0, atol=1e-9)
    turn = rotation(d, seed)
    turned, *_ = minimize_with_unit_determinant(turn.T @ form @ turn, 1e-9)
    torch.testing.assert_close(turned, turn.T @ matrix @ turn, rtol=0, atol=1e-9)


def test_no_perturbation_of_determinant_one_beats_the_minimizer():
    d, form = 5, positive(5, seed=3)
    best = torch.trace(minimize_with_unit_determinant(form, 1e-9)[0] @ form)
    factor = torch.linalg.cholesky(minimize_with_unit_determinant(form, 1e-9)[0])
    tangents = torch.randn(1000, d, d, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    tangents = tangents + tangents.mT
    tangents -= torch.diag_embed(tangents.diagonal(dim1=1, dim2=2).mean(1, keepdim=True).expand(-1, d))
    steps = torch.logspace(-3, 0, 1000, dtype=torch.float64)[:, None, None]
    others = factor @ torch.linalg.matrix_exp(steps * tangents) @ factor.T
    torch.testing.assert_close(torch.logdet(others), torch.zeros(1000, dtype=torch.float64), rtol=0, atol=1e-8)
    assert (torch.einsum("nij,ji->n", others, form) > best).all()


@pytest.mark.parametrize("d", [4, 6])
def test_unit_determinant_minimum_is_that_of_a_general_solver(d):
    form = positive(d, seed=d)
    matrix, *_ = minimize_with_unit_determinant(form, 1e-9)

    def objective(free):  # every M of determinant 1 is some positive matrix over a power of its determinant
        return torch.trace(free @ form) * torch.exp(-torch.logdet(free) / d)

    assert lowest_objective(objective, d) == pytest.approx(torch.trace(matrix @ form).item(), rel=1e-7)


def test_beyond_the_largest_weight_the_objective_falls_for_ever_and_the_floor_guards():
    base, subtracted = positive(4, seed=1), positive(4, seed=2)
    form = base - 1.5 * largest_weight(base, subtracted) * subtracted
    values, vectors = torch.linalg.eigh(form)
    assert values[0] < 0
    ray = []
    for stretch in (10.0, 1e3, 1e5):
        lengths = torch.full((4,), stretch ** (-1 / 3), dtype=torch.float64)
        lengths[0] = stretch
        ray.append(torch.trace((vectors * lengths) @ vectors.T @ form).item())
    assert ray[0] > ray[1] > ray[2]
    assert ray[2] < -1e3
    matrix, _, floored = minimize_with_unit_determinant(form, 1e-3)
    assert_metric(matrix)
    assert floored >= 1
    assert torch.logdet(matrix).abs() < 1e-9


def test_determinants_out_of_range_do_not_overflow():
    form = torch.diag(torch.logspace(-6, -2, 300, dtype=torch.float64))
    matrix, _, floored = minimize_with_unit_determinant(form, 1e-5)
    assert torch.det(form) == 0
    assert matrix.isfinite().all()
    assert torch.linalg.slogdet(matrix).logabsdet.abs() < 1e-9
    assert floored == int((form.diagonal() < 1e-5).sum())


def test_floor_must_be_positive():
    with pytest.raises(InputError, match="floor"):
        minimize_with_unit_determinant(eye(2), 0.0)


@draws(30)
@given(size=sizes, weight=st.floats(0, 10))
def test_proximal_inverse_adds_up(size, weight):
    seed, d = size
    prior, form = positive(d, seed), positive(d, seed + 1, rank=max(1, d // 2))
    matrix, used = logdet_proximal(prior, form, weight)
    assert_metric(matrix)
    assert used == weight
    expected = torch.linalg.inv(torch.linalg.inv(prior) + weight * form)
    torch.testing.assert_close(matrix, expected, rtol=1e-7, atol=1e-9)
    scaled, _ = logdet_proximal(2.5 * prior, form, weight / 2.5)
    torch.testing.assert_close(scaled, 2.5 * matrix, rtol=1e-9, atol=1e-10)
    turn = rotation(d, seed)
    turned, _ = logdet_proximal(turn.T @ prior @ turn, turn.T @ form @ turn, weight)
    torch.testing.assert_close(turned, turn.T @ matrix @ turn, rtol=0, atol=1e-8)


@pytest.mark.parametrize("rank", [None, 3])
def test_weight_zero_returns_the_prior(rank):
    prior = positive(6, rank=rank)
    matrix, used = logdet_proximal(prior, symmetric(6), 0.0)
    torch.testing.assert_close(matrix, prior, rtol=0, atol=1e-12)
    assert used == 0.0


def test_a_singular_prior_is_the_limit_of_jittered_ones():
    prior, form = positive(6, seed=1, rank=3), positive(6, seed=2)
    matrix, _ = logdet_proximal(prior, form, 0.7)
    errors = []
    for jitter in (1e-2, 1e-4, 1e-6):
        inverse = torch.linalg.inv(prior + jitter * eye(6)) + 0.7 * form
        errors.append((torch.linalg.inv(inverse) - matrix).abs().max().item())
    assert errors[0] > 10 * errors[1] > 100 * errors[2]
    assert errors[2] < 1e-4
    direct = torch.linalg.solve(eye(6) + 0.7 * prior @ form, prior)
    torch.testing.assert_close(matrix, direct, rtol=0, atol=1e-10)


def test_result_stays_in_the_range_of_the_prior():
    prior, form = positive(8, seed=1, rank=3), symmetric(8, seed=2)
    matrix, _ = logdet_proximal(prior, form, 0.3)
    assert_metric(matrix)
    vectors = torch.linalg.eigh(prior).eigenvectors
    assert (matrix @ vectors[:, :5]).abs().max() < 1e-12
    assert torch.linalg.eigvalsh(matrix)[5] > 1e-6


def test_guard_caps_the_weight_of_an_indefinite_form():
    prior, form = positive(5, seed=1), symmetric(5, seed=2)
    root = torch.linalg.cholesky(prior)
    lowest = torch.linalg.eigvalsh(root.T @ form @ root)[0].item()
    assert lowest < 0
    matrix, used = logdet_proximal(prior, form, 1e6)
    assert used == pytest.approx(CAP_SHARE / -lowest)
    assert_metric(matrix)
    assert logdet_proximal(prior, form, 0.5 * used)[1] == 0.5 * used
    # without the cap the objective falls for ever along v v^T, v the direction of the negative eigenvalue
    v = torch.linalg.solve(root.T, torch.linalg.eigh(root.T @ form @ root).eigenvectors[:, 0])
    v = prior @ v

    def objective(weight, t):
        candidate = prior + t * torch.outer(v, v)
        return logdet_divergence(candidate, prior) + weight * torch.trace(candidate @ form).item()

    assert objective(2 / -lowest, 1e6) < objective(2 / -lowest, 1e3) < objective(2 / -lowest, 1.0)
    assert objective(used, 1e6) > objective(used, 1e3) > objective(used, 100.0)


@pytest.mark.parametrize("d", [4, 6])
def test_proximal_minimum_is_that_of_a_general_solver(d):
    prior, form = positive(d, seed=d), symmetric(d, seed=d + 1)
    matrix, used = logdet_proximal(prior, form, 0.05)
    inverse = torch.linalg.inv(prior)

    def objective(free):
        ratio = free @ inverse
        return torch.trace(ratio) - torch.logdet(free) + torch.logdet(prior) - d + used * torch.trace(free @ form)

    closed = logdet_divergence(matrix, prior) + used * torch.trace(matrix @ form).item()
    assert closed == pytest.approx(objective(matrix).item(), abs=1e-9)
    assert lowest_objective(objective, d) == pytest.approx(closed, abs=1e-6)


@pytest.mark.parametrize("rank", [None, 3])
def test_no_perturbation_inside_the_range_beats_the_proximal_matrix(rank):
    prior, form = positive(5, seed=1, rank=rank), symmetric(5, seed=2)
    matrix, used = logdet_proximal(prior, form, 0.1)
    values, vectors = torch.linalg.eigh(matrix)
    axes = vectors[:, values > 1e-10] * values[values > 1e-10].sqrt()

    def objective(candidate):
        return logdet_divergence(candidate, prior) + used * torch.trace(candidate @ form).item()

    best = objective(matrix)
    for seed in range(200):
        tangent = 10 ** (-3 + seed / 80) * symmetric(axes.shape[1], seed)
        assert objective(axes @ torch.linalg.matrix_exp(tangent) @ axes.T) > best


def test_a_prior_of_zero_leaves_nothing():
    matrix, used = logdet_proximal(torch.zeros(3, 3), symmetric(3), 0.4)
    assert torch.equal(matrix, torch.zeros(3, 3, dtype=torch.float64))
    assert used == 0.4


def test_proximal_refuses_a_negative_weight():
    with pytest.raises(InputError, match="weight"):
        logdet_proximal(eye(2), eye(2), -1.0)


def test_divergence_is_that_of_its_formula_and_zero_at_the_prior():
    matrix, prior = positive(5, seed=1), positive(5, seed=2)
    ratio = matrix @ torch.linalg.inv(prior)
    expected = torch.trace(ratio) - torch.logdet(matrix) + torch.logdet(prior) - 5
    assert logdet_divergence(matrix, prior) == pytest.approx(expected.item())
    assert logdet_divergence(prior, prior) == pytest.approx(0, abs=1e-10)
    assert logdet_divergence(torch.tensor([[2.0]]), torch.tensor([[1.0]])) == pytest.approx(1 - math.log(2))


def test_divergence_lives_on_the_range_of_the_prior():
    factor = randn(5, 3)
    prior = factor @ factor.T
    inside = factor @ positive(3, seed=1) @ factor.T
    assert logdet_divergence(inside, prior) == pytest.approx(logdet_divergence(positive(3, seed=1), eye(3)))
    assert logdet_divergence(inside + 0.01 * eye(5), prior) == math.inf
    assert logdet_divergence(factor[:, :2] @ factor[:, :2].T, prior) == math.inf
    assert logdet_divergence(prior, eye(5)) == math.inf
