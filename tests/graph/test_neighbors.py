from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers.draws import draws
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from semimetric.core.errors import InputError
from semimetric.graph import nearest, nearest_neighbors

SMALL = hnp.arrays(
    np.float64,
    st.tuples(st.integers(3, 14), st.integers(1, 4)),
    elements=st.integers(-4, 4).map(float),
)


def brute_force(points: np.ndarray, k: int) -> np.ndarray:
    """Sort every row by (distance, number) with exact arithmetic on small integers."""
    squares = ((points[:, None, :] - points[None, :, :]) ** 2).sum(2)
    rows = [[j for j in np.lexsort((np.arange(len(points)), squares[i])) if j != i][:k] for i in range(len(points))]
    return np.array(rows)


@given(SMALL, st.data())
@draws(80)
def test_equals_brute_force_with_ties_by_number(points: np.ndarray, data: st.DataObject) -> None:
    if (points == points[0]).all():
        return
    points = points * len(points)  # the mean is then an integer, so that equal distances are equal to the last bit
    k = data.draw(st.integers(1, len(points) - 1))
    assert np.array_equal(nearest_neighbors(points, k).numpy(), brute_force(points, k))


def test_blocks_do_not_change_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    points = torch.randn(300, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    whole = nearest_neighbors(points, 7)
    monkeypatch.setattr(nearest, "BLOCK_ENTRIES", 1000)
    assert torch.equal(nearest_neighbors(points, 7), whole)


def test_agrees_with_scikit_learn_far_from_the_origin() -> None:
    from sklearn.neighbors import NearestNeighbors

    points = torch.randn(400, 6, generator=torch.Generator().manual_seed(1)) + 1000.0
    reference = NearestNeighbors(n_neighbors=4, algorithm="kd_tree").fit(points.double().numpy())
    expected = reference.kneighbors(return_distance=False)
    assert (nearest_neighbors(points, 4).numpy() == expected).mean() > 0.99


@pytest.mark.parametrize("spread", [1e-1, 1e-3, 1e-5])
def test_float32_features_lose_no_close_neighbour(spread: float) -> None:
    generator = torch.Generator().manual_seed(0)
    centres = torch.nn.functional.normalize(torch.randn(10, 64, generator=generator), dim=1)
    points = centres.repeat_interleave(30, 0) + spread * torch.randn(300, 64, generator=generator)
    exact = torch.cdist(points.double(), points.double(), compute_mode="donot_use_mm_for_euclid_dist")
    exact.fill_diagonal_(torch.inf)
    assert torch.equal(nearest_neighbors(points, 8), exact.sort(dim=1, stable=True).indices[:, :8])


def test_duplicates_are_each_others_neighbours_and_nobody_is_its_own() -> None:
    points = torch.tensor([[0.0], [0.0], [0.0], [5.0], [5.0]])
    assert nearest_neighbors(points, 2).tolist() == [[1, 2], [0, 2], [0, 1], [4, 0], [3, 0]]


@pytest.mark.parametrize(
    ("features", "k", "message"),
    [
        (torch.zeros(4, 2), 1, "constant"),
        (torch.eye(4), 4, "below the number of examples"),
        (torch.eye(4), 0, "at least 1"),
        (torch.tensor([[0.0], [float("nan")], [float("inf")], [1.0]]), 1, r"rows 1, 2\)"),
        (torch.zeros(4), 1, "must be a matrix"),
    ],
)
def test_bad_input_is_named(features: torch.Tensor, k: int, message: str) -> None:
    with pytest.raises(InputError, match=message):
        nearest_neighbors(features, k)


def all_differences(points: torch.Tensor, k: int) -> torch.Tensor:
    """Neighbours by float64 differences to all rows, sorted by (distance, number)."""
    exact = torch.cdist(points.double(), points.double(), compute_mode="donot_use_mm_for_euclid_dist")
    return exact.fill_diagonal_(torch.inf).sort(dim=1, stable=True).indices[:, :k]


def hard_points(kind: str) -> torch.Tensor:
    """700 rows whose neighbours float32, or expanded squares in any precision, cannot tell apart."""
    generator = torch.Generator().manual_seed(5)
    draws = torch.randn(700, 6, generator=generator, dtype=torch.float64)
    return {
        "distinct": draws,
        "near ties": torch.sign(draws) + 1e-6 * draws,  # tight bundles: float32 is not enough, float64 is
        "closer than rounding": torch.sign(draws) * 1e3 + 1e-7 * draws,  # expanded squares are not enough
        "copies": draws[torch.randint(60, (700,), generator=generator)],
        "categories": torch.eye(6, dtype=torch.float64)[torch.randint(6, (700,), generator=generator)],
        "one far away": torch.cat([draws[:-1], 1e9 * draws[-1:]]),
    }[kind]


@pytest.mark.parametrize("block", [5000, nearest.BLOCK_ENTRIES])
@pytest.mark.parametrize(
    "kind", ["distinct", "near ties", "closer than rounding", "copies", "categories", "one far away"]
)
def test_hard_points_have_the_neighbours_of_all_differences(
    kind: str, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    points = hard_points(kind)
    monkeypatch.setattr(nearest, "BLOCK_ENTRIES", block)
    for k in (1, 10, 40):
        assert torch.equal(nearest_neighbors(points, k), all_differences(points, k))


@pytest.mark.parametrize("size", [1e-200, 1e-30, 1e30, 1e155, 1e300])
def test_neighbours_do_not_depend_on_the_unit(size: float) -> None:
    points = hard_points("distinct")
    assert torch.equal(nearest_neighbors(points * size, 10), nearest_neighbors(points, 10))


def test_most_rows_are_decided_in_single_precision(monkeypatch: pytest.MonkeyPatch, make_clusters) -> None:
    points, _ = make_clusters(0, 2000, 32, 10)
    again: list[int] = []
    original = nearest._Part._decided

    def counted(part: nearest._Part, asked: torch.Tensor, *rest: object) -> object:
        again.append(len(asked))
        return original(part, asked, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(nearest._Part, "_decided", counted)
    nearest_neighbors(points, 10)
    assert sum(again) < 20


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["distinct", "near ties", "copies"])
def test_gpu_finds_the_same_neighbours(kind: str) -> None:
    points = hard_points(kind)
    assert torch.equal(nearest_neighbors(points.cuda(), 10).cpu(), all_differences(points, 10))
