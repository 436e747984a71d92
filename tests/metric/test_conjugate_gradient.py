import os
from dataclasses import dataclass, field
from functools import partial

import pytest
import torch
from helpers.draws import draws
from hypothesis import given
from hypothesis import strategies as st
from threadpoolctl import threadpool_info, threadpool_limits

from semimetric.core.errors import InputError
from semimetric.losses import angular_loss
from semimetric.metric import (
    AngularProblem,
    Euclidean,
    Stiefel,
    conjugate_gradient,
    host_solver,
    minimize_angular,
    random_orthonormal,
)
from semimetric.metric.angular import row_margins
from semimetric.metric.host_geometry import HostStiefel

problems = st.tuples(st.integers(0, 10_000), st.integers(1, 6), st.integers(0, 6), st.integers(1, 20))


def make(seed, l=4, extra=4, t=15):  # noqa: E741
    generator = torch.Generator().manual_seed(seed)
    d = l + extra
    start = random_orthonormal(d, l, generator)
    points = torch.randn(3, t, d, generator=generator, dtype=torch.float64)
    return start, *torch.nn.functional.normalize(points, dim=-1).unbind(0)


def reference_loss(point, anchor, positive, negative, alpha=40.0):
    t = len(anchor)
    triplets = torch.arange(3 * t).reshape(3, t).T
    return angular_loss(torch.cat([anchor, positive, negative]), triplets, point, alpha)


def gram_error(point):
    return (point.T @ point - torch.eye(point.shape[1], dtype=point.dtype)).abs().max().item()


@draws(15)
@given(size=problems, alpha=st.floats(10, 60))
def test_problem_cost_and_gradient_equal_the_loss_and_its_autograd(size, alpha):
    start, *points = make(*size)
    problem = AngularProblem(*points, alpha)
    projections = problem.rows @ start
    margins = row_margins(projections)
    start.requires_grad_()
    loss = reference_loss(start, *points, alpha)
    loss.backward()
    torch.testing.assert_close(problem.cost(margins).detach(), loss.detach(), rtol=1e-12, atol=1e-12)
    gradient = problem.gradient(projections, margins).detach()
    assert (gradient - start.grad).norm() <= 1e-9 * (1 + start.grad.norm())


@pytest.mark.parametrize("seed", range(3))
def test_gradient_agrees_with_central_differences(seed):
    start, *points = make(seed)
    problem = AngularProblem(*points, 40.0)
    gradient = problem.gradient(problem.rows @ start, row_margins(problem.rows @ start))
    numeric = torch.empty_like(start)
    for i in range(start.shape[0]):
        for j in range(start.shape[1]):
            bump = torch.zeros_like(start)
            bump[i, j] = 1e-5
            costs = [problem.cost(row_margins(problem.rows @ p)) for p in (start + bump, start - bump)]
            numeric[i, j] = (costs[0] - costs[1]) / 2e-5
    assert (gradient - numeric).norm() <= 1e-6 * gradient.norm()


@draws(25)
@given(size=problems)
def test_every_step_is_orthonormal_and_never_raises_the_cost(size):
    start, *points = make(*size)
    previous = reference_loss(start, *points).item()
    for k in range(1, 11):
        result = minimize_angular(start, *points, max_iterations=k)
        assert gram_error(result.point) < 1e-10
        cost = reference_loss(result.point, *points).item()
        assert cost <= previous + 1e-10
        assert result.cost.item() == pytest.approx(cost, rel=1e-9)
        previous = cost


@pytest.mark.parametrize("at_once", [1, 3, 10])
def test_trial_steps_in_blocks_take_the_same_path(at_once, monkeypatch):
    start, *points = make(0, 5, 7, 40)
    whole = minimize_angular(start, *points, line_search="parallel")
    monkeypatch.setattr(conjugate_gradient, "BLOCK_NUMBERS", at_once * 2 * len(points[0]) * start.shape[1])
    torch.testing.assert_close(minimize_angular(start, *points, line_search="parallel").costs, whole.costs)


@pytest.mark.parametrize("geometry", [Stiefel(), Euclidean(), Euclidean(radius=1.5)], ids=str)
@draws(15)
@given(size=problems)
def test_sequential_and_parallel_searches_take_the_same_steps(geometry, size):
    start, *points = make(*size)
    cut = getattr(geometry, "radius", 100.0) < 100.0
    steps = 3 if cut else 10  # both round differently; each step that a radius cuts short amplifies that tenfold
    one, all_at_once = (
        minimize_angular(start, *points, geometry=geometry, line_search=name, max_iterations=steps)
        for name in ("sequential", "parallel")
    )
    close = partial(torch.testing.assert_close, rtol=1e-7, atol=1e-7)
    close(all_at_once.point, one.point)
    close(all_at_once.cost, one.cost)
    assert abs(int(all_at_once.iterations) - int(one.iterations)) <= 1  # the last step is as small as its rounding
    assert all_at_once.costs.shape == (steps + 1,)
    shared = len(one.costs)
    close(all_at_once.costs[:shared], one.costs)
    close(all_at_once.costs[shared:], all_at_once.costs[-1].expand(steps + 1 - shared))


@pytest.mark.parametrize(
    ("geometry", "iterations"),
    [(Stiefel(), 1), (Stiefel(), 10), (Stiefel(), 40), (Euclidean(), 10), (Euclidean(radius=1.01), 10)],
    ids=str,
)
def test_both_loops_agree_at_the_size_of_a_mini_batch(geometry, iterations):
    start, *points = make(13, l=64, extra=64, t=100)
    one, all_at_once = (
        minimize_angular(start, *points, geometry=geometry, line_search=name, max_iterations=iterations)
        for name in ("sequential", "parallel")
    )
    assert one.iterations == all_at_once.iterations
    torch.testing.assert_close(all_at_once.point, one.point, rtol=0, atol=1e-10)
    torch.testing.assert_close(all_at_once.costs[: len(one.costs)], one.costs, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(all_at_once.gradient_norm, one.gradient_norm, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("line_search", ["sequential", "parallel"])
def test_memory_layout_does_not_matter_and_the_result_is_the_callers_own(line_search):
    start, *points = make(14)
    expected = minimize_angular(start, *points, line_search=line_search)
    strided = [torch.stack([p, p], dim=1)[:, 0] for p in points]
    result = minimize_angular(start.T.contiguous().T, *strided, line_search=line_search)
    torch.testing.assert_close(result.point, expected.point, rtol=0, atol=1e-12)
    for iterations in (0, 3):
        result = minimize_angular(start, *points, max_iterations=iterations, line_search=line_search)
        before = start.clone()
        result.point.zero_()
        assert torch.equal(start, before)


@pytest.mark.parametrize("line_search", ["sequential", "parallel"])
@pytest.mark.parametrize("seed", range(3))
def test_a_long_run_at_the_size_of_a_mini_batch_stays_orthonormal_and_converges(seed, line_search):
    start, *points = make(seed, l=64, extra=64, t=100)
    result = minimize_angular(start, *points, max_iterations=400, line_search=line_search)
    assert gram_error(result.point) < 1e-13
    assert result.gradient_norm < 1e-5


def test_numbers_that_overflow_give_costs_that_are_not_finite_and_no_warning():
    start, *points = make(15)
    result = minimize_angular(start, *(1e160 * p for p in points))
    assert not result.cost.isfinite()
    assert gram_error(result.point) < 1e-12


def test_long_runs_converge_and_beat_steepest_descent():
    start, *points = make(3, l=6, extra=10, t=40)
    result = minimize_angular(start, *points, max_iterations=1000)
    assert result.gradient_norm < 1e-6
    assert result.iterations < 1000
    assert gram_error(result.point) < 1e-10
    problem, point, step = AngularProblem(*points, 40.0), start, 0.02
    for _ in range(int(result.iterations)):
        gradient = problem.gradient(problem.rows @ point, row_margins(problem.rows @ point))
        point = torch.linalg.qr(point - step * Stiefel().project(point, gradient))[0]
    assert result.cost < problem.cost(row_margins(problem.rows @ point))
    again = minimize_angular(result.point, *points)
    assert again.iterations == 0
    torch.testing.assert_close(again.point, result.point, rtol=0, atol=1e-12)


def test_reported_gradient_norm_is_that_of_the_projected_autograd_gradient():
    start, *points = make(11)
    result = minimize_angular(start, *points)
    point = result.point.clone().requires_grad_()
    reference_loss(point, *points).backward()
    gradient = point.grad - result.point @ (result.point.T @ point.grad)
    assert result.gradient_norm.item() == pytest.approx(gradient.norm().item(), rel=1e-6)


def test_a_rotated_start_reaches_the_same_cost_in_one_step():
    start, *points = make(4)
    rotation = random_orthonormal(4, 4, torch.Generator().manual_seed(9))
    costs = [minimize_angular(s, *points, max_iterations=1).cost for s in (start, start @ rotation)]
    torch.testing.assert_close(*costs, rtol=1e-10, atol=0)


def test_a_thousand_warm_starts_stay_orthonormal():
    generator = torch.Generator().manual_seed(0)
    point = random_orthonormal(10, 4, generator)
    for _ in range(1000):
        points = torch.randn(3, 6, 10, generator=generator, dtype=torch.float64)
        point = minimize_angular(point, *points, max_iterations=2).point
    assert gram_error(point) < 1e-10


def test_float32_input_is_solved_in_float64():
    start, *points = make(5)
    low = minimize_angular(start.float(), *(p.float() for p in points))
    assert low.point.dtype == torch.float64
    assert gram_error(low.point) < 1e-10
    assert low.cost.item() == pytest.approx(minimize_angular(start, *points).cost.item(), rel=1e-3)


@pytest.mark.parametrize("line_search", ["sequential", "parallel"])
def test_nothing_to_do_leaves_the_point(line_search):
    start, *_ = make(6)
    same = torch.ones(5, 8, dtype=torch.float64)
    for points in ([torch.zeros(5, 8)] * 3, [same] * 3):
        result = minimize_angular(start, *points, line_search=line_search)
        torch.testing.assert_close(result.point, start, rtol=0, atol=1e-13)
        assert result.iterations == 0
        assert result.cost.item() == pytest.approx(5 * torch.log(torch.tensor(2.0)).item(), rel=1e-6)


@pytest.mark.parametrize("line_search", ["sequential", "parallel"])
def test_a_square_factor_and_a_single_triplet_are_fine(line_search):
    start, *points = make(7, l=5, extra=0, t=1)
    result = minimize_angular(start, *points, line_search=line_search)
    torch.testing.assert_close(result.point, start, rtol=0, atol=1e-12)
    assert result.gradient_norm < 1e-10


def test_free_factor_stays_in_its_ball():
    generator = torch.Generator().manual_seed(8)
    anchor = torch.randn(20, 8, generator=generator, dtype=torch.float64)
    positive = anchor + 0.01 * torch.randn(20, 8, generator=generator, dtype=torch.float64)
    negative = anchor + 3 * torch.randn(20, 8, generator=generator, dtype=torch.float64)
    start = 0.01 * random_orthonormal(8, 4, generator)
    result = minimize_angular(start, anchor, positive, negative, geometry=Euclidean(0.5), max_iterations=200)
    assert result.point.isfinite().all()
    assert result.point.norm() <= 0.5 * 2.0 + 1e-12
    assert (result.costs.diff() <= 0).all()
    free = minimize_angular(start, anchor, positive, negative, geometry=Euclidean(), max_iterations=200)
    assert free.cost < result.cost
    assert free.point.norm() > result.point.norm()


@pytest.mark.parametrize("line_search", ["sequential", "parallel"])
def test_a_single_free_parameter_is_minimized(line_search):
    start, *points = make(3557, l=1, extra=0, t=9)
    result = minimize_angular(start, *points, geometry=Euclidean(1.5), max_iterations=100, line_search=line_search)
    assert result.point.abs().item() == pytest.approx(0.55286, abs=1e-4)
    assert result.gradient_norm < 1e-5


def test_zero_iterations_measure_only_and_inputs_are_untouched():
    start, *points = make(9)
    before = [tensor.clone() for tensor in (start, *points)]
    result = minimize_angular(start, *points, max_iterations=0)
    assert result.cost.item() == pytest.approx(reference_loss(start, *points).item())
    minimize_angular(start, *points)
    for old, new in zip(before, (start, *points), strict=True):
        assert torch.equal(old, new)


def test_result_can_be_used_under_autograd():
    start, *points = make(10)
    result = minimize_angular(start.requires_grad_(), *points)
    assert not result.point.requires_grad
    embeddings = points[0].clone().requires_grad_()
    (embeddings @ result.point).square().sum().backward()
    assert embeddings.grad.abs().sum() > 0


def bad_inputs():
    start, anchor, positive, negative = make(0)
    nan = anchor.clone()
    nan[0, 0] = float("nan")
    return [
        ((start, nan, positive, negative), {}, "not finite"),
        ((start * float("inf"), anchor, positive, negative), {}, "not finite"),
        ((start, anchor[:3], positive, negative), {}, "anchor"),
        ((start, anchor[:0], positive[:0], negative[:0]), {}, "anchor"),
        ((start[:5], anchor, positive, negative), {}, "rows"),
        ((start.T, anchor, positive, negative), {}, "metric factor"),
        ((2 * start, anchor, positive, negative), {}, "orthonormal"),
        ((torch.zeros_like(start), anchor, positive, negative), {}, "orthonormal"),
        ((start, anchor, positive, negative), {"alpha": 90.0}, "alpha"),
        ((start, anchor, positive, negative), {"max_iterations": -1}, "max_iterations"),
        ((start, anchor, positive, negative), {"line_search": "golden"}, "line_search"),
        (tuple(p.to("meta") for p in (start, anchor, positive, negative)), {"line_search": "sequential"}, "CPU"),
    ]


@pytest.mark.parametrize(("arguments", "options", "word"), bad_inputs())
def test_refuses_bad_input(arguments, options, word):
    with pytest.raises(InputError, match=word):
        minimize_angular(*arguments, **options)


class UphillOnHost(HostStiefel):
    def project(self, point, vector):
        return -super().project(point, vector)


class Uphill(Stiefel):
    """Takes every gradient for its opposite, so that no line search can succeed."""

    def project(self, point, vector):
        return -super().project(point, vector)

    def on_host(self):
        return UphillOnHost()


@pytest.mark.parametrize("line_search", ["sequential", "parallel"])
def test_two_failed_searches_in_a_row_end_the_run_where_it_began(line_search):
    start, *points = make(12)
    result = minimize_angular(start, *points, geometry=Uphill(), line_search=line_search)
    assert result.iterations == 2
    torch.testing.assert_close(result.point, start, rtol=0, atol=1e-13)
    assert (result.costs == result.costs[0]).all()


def threads_of_blas():
    pools = [pool for pool in threadpool_info() if pool["user_api"] == "blas"]
    return {pool["num_threads"] for pool in pools if pool.get("threading_layer") != "openmp"}


@dataclass(frozen=True)
class WatchedHost(HostStiefel):
    """Notes the threads of BLAS."""

    seen: set[int]

    def project(self, point, vector):
        self.seen.update(threads_of_blas())
        return super().project(point, vector)


@dataclass(frozen=True)
class Watched(Stiefel):
    seen: set[int] = field(default_factory=set)

    def on_host(self):
        return WatchedHost(self.seen)


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="needs two processors")
@pytest.mark.parametrize(("least", "wanted"), [(2 * 15 * 8 * 4 + 1, 1), (2 * 15 * 8 * 4, 2)])
def test_small_problems_take_one_blas_thread_and_all_have_the_same_result(least, wanted, monkeypatch):
    monkeypatch.setattr(host_solver, "ONE_THREAD_PRODUCT", least)
    with threadpool_limits(2, user_api="blas"):
        watched = Watched()
        found = minimize_angular(*make(3), geometry=watched)
        assert watched.seen == {wanted}
        assert threads_of_blas() == {2}
    with threadpool_limits(1, user_api="blas"):
        watched = Watched()
        torch.testing.assert_close(minimize_angular(*make(3), geometry=watched).point, found.point)
        assert watched.seen == {1}
