from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from semimetric.metric.closed_forms import project_psd
from semimetric.metric.entropy import (
    INFLECTION,
    EntropyProblem,
    binary_entropy,
    convex_steps,
    entropy_slope,
    label_surprise,
    projected_gradient,
)


def problem(
    seed: int = 0, d: int = 5, mu: float = 1.0, trace_weight: float = 0.01, unknown: int = 60
) -> EntropyProblem:
    generator = torch.Generator().manual_seed(seed)
    stretch = torch.linspace(0.3, 1.5, d, dtype=torch.float64)

    def differences(count: int, scale: float) -> torch.Tensor:
        return scale * stretch * torch.randn(count, d, generator=generator, dtype=torch.float64)

    return EntropyProblem(differences(20, 0.5), differences(30, 1.2), differences(60, 1.0), 3.0, mu, trace_weight)


def random_psd(seed: int, d: int = 5) -> torch.Tensor:
    factor = torch.randn(d, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return factor @ factor.T / d


def test_entropy_is_even_bounded_and_finite_everywhere() -> None:
    s = torch.tensor([-1e4, -3.0, 0.0, 3.0, 1e4], dtype=torch.float64)
    found = binary_entropy(s)
    assert float(found[2]) == pytest.approx(math.log(2))
    assert torch.allclose(found, found.flip(0))
    assert torch.isfinite(found).all()
    p = 1 / (1 + math.exp(-3.0))
    assert float(found[3]) == pytest.approx(-p * math.log(p) - (1 - p) * math.log(1 - p))


@given(seed=st.integers(0, 1000))
def test_cost_is_the_formula(seed: int) -> None:
    problem_, matrix = problem(seed), random_psd(seed)

    def mean(pairs: torch.Tensor, term) -> float:
        return sum(term(problem_.eta - float(v @ matrix @ v)) for v in pairs) / len(pairs)

    def entropy(s: float) -> float:
        p = 1 / (1 + math.exp(-s))
        return -sum(q * math.log(max(q, 1e-300)) for q in (p, 1 - p))

    expected = 0.5 * mean(problem_.similar, lambda s: math.log1p(math.exp(-s)))
    expected += 0.5 * mean(problem_.dissimilar, lambda s: math.log1p(math.exp(s)))
    expected += mean(problem_.unknown, entropy) + 0.01 * float(matrix.trace())
    assert problem_.cost(matrix) == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("mu", [0.0, 1.0, 4.0])
def test_gradients_equal_finite_differences(mu: float) -> None:
    whole = problem(1, mu=mu)
    matrix, direction = random_psd(1), random_psd(2) - random_psd(3)
    for part in (whole, whole.surrogate(random_psd(4))):
        step = 1e-6
        slope = (part.cost(matrix + step * direction) - part.cost(matrix - step * direction)) / (2 * step)
        trace = part.trace_weight * float(direction.trace())
        gradient = part.gradient(part.evaluate(matrix).slopes)
        assert float((gradient * direction).sum()) + trace == pytest.approx(slope, rel=1e-6)


def test_entropy_turns_at_its_inflection() -> None:
    s = torch.linspace(-30, 30, 60_001, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(binary_entropy(s).sum(), s, create_graph=True)
    (bend,) = torch.autograd.grad(slope.sum(), s)
    assert torch.allclose(slope, entropy_slope(s), atol=1e-12)
    assert bool((bend[s.abs() < INFLECTION] <= 1e-12).all())
    assert bool((bend[s.abs() > INFLECTION] >= -1e-12).all())


@given(seed=st.integers(0, 1000))
def test_surrogate_lies_above_and_touches(seed: int) -> None:
    whole, at, other = problem(seed), 3 * random_psd(seed), 3 * random_psd(seed + 1)
    surrogate = whole.surrogate(at)
    offset = whole.cost(at) - surrogate.cost(at)
    assert whole.cost(other) <= surrogate.cost(other) + offset + 1e-12
    gradients = [part.gradient(part.evaluate(at).slopes) for part in (whole, surrogate)]
    assert torch.allclose(*gradients, atol=1e-12)
    middle = surrogate.cost((at + other) / 2)
    assert middle <= (surrogate.cost(at) + surrogate.cost(other)) / 2 + 1e-12


@pytest.mark.parametrize("solve", [projected_gradient, convex_steps])
def test_costs_fall_and_the_matrix_stays_in_the_cone(solve) -> None:
    whole = problem(2)
    result = solve(whole, torch.eye(5, dtype=torch.float64))
    assert all(later <= earlier + 1e-12 for earlier, later in zip(result.costs, result.costs[1:], strict=False))
    assert result.costs[-1] < result.costs[0]
    assert result.cost == pytest.approx(whole.cost(result.matrix))
    assert float(torch.linalg.eigvalsh(result.matrix)[0]) >= -1e-10
    assert float((result.matrix - result.matrix.T).abs().max()) <= 1e-12


@pytest.mark.parametrize("seed", range(5))
def test_both_solvers_reach_the_same_objective(seed: int) -> None:
    whole = problem(seed)
    start = torch.eye(5, dtype=torch.float64)
    gradient = projected_gradient(whole, start, 2000, 1e-9)
    convex = convex_steps(whole, start, 500, 1e-10)
    assert gradient.cost == pytest.approx(convex.cost, rel=1e-3)
    for found in (gradient, convex):  # J is not convex; where one solver ends the other finds nothing to gain
        for solve in (projected_gradient, convex_steps):
            assert solve(whole, found.matrix).cost == pytest.approx(found.cost, rel=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_without_unknown_pairs_it_is_logistic_metric_learning(seed: int) -> None:
    """Convex then: a general solver on M = A A^T ends at the same cost, and mu = 0 ignores the unknown pairs."""
    scipy = pytest.importorskip("scipy.optimize")
    whole = problem(seed, d=3, mu=0.0)
    found = projected_gradient(whole, torch.eye(3, dtype=torch.float64), 2000, 1e-10)

    def cost(flat) -> float:
        factor = torch.tensor(flat).reshape(3, 3)
        return whole.cost(factor @ factor.T)

    general = scipy.minimize(cost, torch.eye(3).flatten().double().numpy(), method="BFGS", options={"gtol": 1e-8})
    assert found.cost == pytest.approx(general.fun, rel=1e-6)
    none = EntropyProblem(whole.similar, whole.dissimilar, whole.unknown[:0], 3.0, 1.0, 0.01)
    assert none.cost(found.matrix) == pytest.approx(found.cost)


def test_order_of_pairs_does_not_matter() -> None:
    whole = problem(3)
    turned = EntropyProblem(whole.similar.flip(0), whole.dissimilar.flip(0), -whole.unknown.flip(0), 3.0, 1.0, 0.01)
    start = torch.eye(5, dtype=torch.float64)
    assert torch.allclose(projected_gradient(whole, start).matrix, projected_gradient(turned, start).matrix, atol=1e-8)


def test_too_much_trace_weight_empties_the_metric() -> None:
    found = projected_gradient(problem(0, trace_weight=1e3), torch.eye(5, dtype=torch.float64))
    assert float(found.matrix.trace()) < 1e-8


def test_surprise_of_a_kind_without_pairs_is_zero() -> None:
    distances = torch.tensor([1.0, 5.0], dtype=torch.float64)
    same = torch.tensor([1.0, 0.0], dtype=torch.float64)
    expected = 0.5 * math.log1p(math.exp(1.0 - 3.0))
    assert float(label_surprise(distances, same, torch.zeros(2, dtype=torch.float64), 3.0)) == pytest.approx(expected)


def test_projection_is_used() -> None:
    """A start outside of the cone comes back into it."""
    found = projected_gradient(problem(0), -torch.eye(5, dtype=torch.float64))
    assert torch.allclose(found.matrix, project_psd(found.matrix), atol=1e-10)
