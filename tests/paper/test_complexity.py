from __future__ import annotations

import dataclasses
import json
import math

import numpy as np
import pytest
import torch
from threadpoolctl import threadpool_info

from semimetric.core.errors import InputError
from semimetric.metric import AngularProblem, random_orthonormal
from semimetric.metric.angular import row_margins
from semimetric.paper.complexity import fit_exponent, measure_growth, outer_product_gradient

SIZES = (64, 128, 256, 512, 1024, 2048)


@pytest.mark.parametrize("power", [0.0, 0.5, 1.0, 2.0, 3.0])
def test_exact_powers_are_recovered(power: float) -> None:
    exponent, error = fit_exponent(SIZES, [3e-7 * size**power for size in SIZES])
    assert exponent == pytest.approx(power, abs=1e-9)
    assert error == pytest.approx(0, abs=1e-9)


def test_the_order_of_the_points_does_not_matter() -> None:
    seconds = [size**1.5 * (1 + 0.1 * (size == 512)) for size in SIZES]
    assert fit_exponent(SIZES[::-1], seconds[::-1]) == pytest.approx(fit_exponent(SIZES, seconds))


def test_the_lower_half_of_the_sizes_has_no_influence() -> None:
    seconds = [float(size**2) for size in SIZES]
    assert fit_exponent(SIZES, [1e9, 1e-9, 1.0, *seconds[3:]]) == pytest.approx((2.0, 0.0))


def test_the_fixed_cost_of_a_call_hardly_matters() -> None:
    seconds = [1e-4 + 1e-8 * size**2 for size in SIZES]  # at the smallest size more than half is fixed cost
    assert fit_exponent(SIZES, seconds)[0] == pytest.approx(2, abs=0.05)


@pytest.mark.parametrize("seed", range(20))
def test_noise_of_five_per_cent_moves_the_exponent_little_and_shows_in_the_error(seed: int) -> None:
    noise = np.random.default_rng(seed).uniform(0.95, 1.05, len(SIZES))
    exponent, error = fit_exponent(SIZES, [size * factor for size, factor in zip(SIZES, noise, strict=True)])
    assert exponent == pytest.approx(1, abs=0.1)
    assert 0 < error < 0.2


def test_two_points_give_their_slope() -> None:
    assert fit_exponent([2, 8], [1.0, 4.0]) == pytest.approx((1.0, 0.0))


@pytest.mark.parametrize(
    ("sizes", "seconds"),
    [
        ([1, 2, 4], [1.0, 2.0]),
        ([1], [1.0]),
        ([], []),
        ([2, 2, 4], [1.0, 1.0, 2.0]),
        ([1, 2, 4], [1.0, 0.0, 2.0]),
        ([1, 2, 4], [1.0, math.nan, 2.0]),
        ([1, 2, 4], [1.0, math.inf, 2.0]),
        ([0, 2, 4], [1.0, 1.0, 2.0]),
    ],
)
def test_what_has_no_exponent_is_refused(sizes: list[float], seconds: list[float]) -> None:
    with pytest.raises(InputError):
        fit_exponent(sizes, seconds)


def test_both_forms_of_the_gradient_agree(make_clusters) -> None:
    points = make_clusters(0, 63, 12, 3)[0].double()
    problem = AngularProblem(points[:20], points[3:23], points[31:51], 40.0)
    start = random_orthonormal(12, 5, torch.Generator().manual_seed(0))
    projections = problem.rows @ start
    margins = row_margins(projections)
    expected = problem.gradient(projections, margins)
    torch.testing.assert_close(outer_product_gradient(problem.rows, start, margins), expected, rtol=1e-12, atol=1e-12)


WANTED = {
    ("cost", "T_b"): 1,
    ("cost", "d"): 1,
    ("cost", "l"): 1,
    ("gradient", "T_b"): 1,
    ("gradient", "d"): 2,
    ("gradient", "l"): 1,
    ("gradient, d x d form", "T_b"): 1,
    ("gradient, d x d form", "d"): 2,
    ("gradient, d x d form", "l"): 1,
    ("metric step", "T_b"): 1,
    ("metric step", "d"): 2,
    ("metric step", "l"): 1,
    ("neighbours", "N"): None,
    ("propagation, dense", "N"): None,
    ("propagation, iterative", "N"): None,
    ("mining", "N"): None,
    ("constraints", "N"): None,
    ("lrml", "d"): 3,
    ("apllr", "d"): 3,
    ("apllr", "N"): 3,
    ("apit", "d"): 3,
    ("apit", "N"): 3,
}


def test_a_quick_measurement_has_every_step_and_size() -> None:
    seen = []
    found = measure_growth(quick=True, progress=lambda *call: seen.append(call))
    assert {(growth.step, growth.variable): growth.stated for growth in found} == WANTED
    assert len(found) == len(WANTED)
    assert seen == [
        (f"{growth.step} against {growth.variable}", number, len(found)) for number, growth in enumerate(found, start=1)
    ]
    for growth in found:
        assert len(growth.sizes) == len(growth.seconds) >= 3
        assert list(growth.sizes) == sorted(set(growth.sizes))
        assert all(seconds > 0 for seconds in growth.seconds)
        assert math.isfinite(growth.exponent)
        assert math.isfinite(growth.error)
        assert (growth.exponent, growth.error) == fit_exponent(growth.sizes, growth.seconds)
        assert growth.variable not in {size.split(" = ")[0] for size in growth.fixed.split(", ")}
        assert (growth.stated_text == "not stated") == (growth.stated is None)
    written = json.loads(json.dumps([dataclasses.asdict(growth) for growth in found]))
    assert written[0]["sizes"] == list(found[0].sizes)
    assert written[-1]["exponent"] == found[-1].exponent


@pytest.fixture
def three_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def pools() -> list[tuple[str, int]]:
    return sorted((pool["filepath"], pool["num_threads"]) for pool in threadpool_info())


class StopError(Exception):
    pass


@pytest.mark.usefixtures("three_threads")
def test_thread_counts_are_restored_even_after_an_error() -> None:
    before, during = pools(), []

    def stop(name: str, done: int, total: int) -> None:
        during.extend([torch.get_num_threads(), *(threads for _, threads in pools())])
        if done == 2:
            raise StopError

    with pytest.raises(StopError):
        measure_growth(quick=True, progress=stop)
    assert set(during) == {1}
    assert torch.get_num_threads() == 3
    assert pools() == before
