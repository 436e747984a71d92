from __future__ import annotations

from unittest import mock

import numpy as np
import pytest
import torch
from helpers.draws import draws
from helpers.search import brute_force
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from semimetric.core.errors import InputError
from semimetric.graph import nearest
from semimetric.search import ExactIndex


def lattice(rows: st.SearchStrategy[int], width: int) -> st.SearchStrategy[torch.Tensor]:
    """Points of a small grid: many are the same, many are at the same distance, and all arithmetic is exact."""
    numbers = st.integers(-2, 2).map(float)
    return rows.flatmap(lambda count: arrays(np.float32, (count, width), elements=numbers)).map(torch.from_numpy)


@given(st.data(), st.integers(1, 4), st.integers(1, 40), st.sampled_from([8, 64, nearest.BLOCK_ENTRIES]))
@draws(150)
def test_equals_brute_force_ties_by_row(data: st.DataObject, width: int, k: int, block: int) -> None:
    stored = data.draw(lattice(st.integers(1, 30), width))
    queries = data.draw(lattice(st.integers(1, 5), width))
    with mock.patch.object(nearest, "BLOCK_ENTRIES", block):
        hits = ExactIndex(stored).search(queries, k)
    rows, distances = brute_force(stored, queries, k)
    assert hits.rows.dtype == torch.long
    assert hits.rows.shape == (len(queries), min(k, len(stored)))
    assert np.array_equal(hits.rows.numpy(), rows)
    np.testing.assert_array_max_ulp(hits.distances.numpy(), distances)  # square roots of two libraries


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_near_ties_far_from_the_origin(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    stored = (1e4 + torch.rand(300, 8, generator=generator, dtype=torch.float64) / 64).to(dtype)
    hits = ExactIndex(stored).search(stored[:20], 12)
    rows, distances = brute_force(stored, stored[:20], 12)
    assert np.array_equal(hits.rows.numpy(), rows)
    np.testing.assert_allclose(hits.distances.numpy(), distances, rtol=1e-13)
    assert (hits.distances[:, 0] == 0).all()


def test_differences_below_the_rounding_of_expanded_squares_decide() -> None:
    """|y|^2 - 2 xy of about 1e6 is rounded to 1e-10; the squared distances here are below 1e-12."""
    generator = torch.Generator().manual_seed(0)
    query = torch.full((1, 8), 1e3, dtype=torch.float64)
    near = query + 1e-7 * torch.randn(200, 8, generator=generator, dtype=torch.float64)
    stored = torch.cat([near, -near])  # the mean row is the origin, so that centring is no help
    hits = ExactIndex(stored).search(query, 5)
    assert np.array_equal(hits.rows.numpy(), brute_force(stored, query, 5)[0])


def test_all_the_same() -> None:
    stored = torch.full((3000, 7), 0.1)
    hits = ExactIndex(stored).search(stored[:3], 7)
    assert (hits.rows == torch.arange(7)).all()
    assert (hits.distances == 0).all()


@pytest.mark.parametrize("all_the_same", [False, True])
def test_memory_is_bounded(largest_tensor, make_clusters, all_the_same: bool) -> None:
    stored = torch.ones(1300, 8) if all_the_same else make_clusters(0, 1300, 8, 10)[0]
    queries = stored[:100]
    whole = ExactIndex(stored).search(queries, 10)
    with mock.patch.object(nearest, "BLOCK_ENTRIES", 4096):
        index = ExactIndex(stored)
        with largest_tensor() as seen:
            hits = index.search(queries, 10)
    assert seen.entries <= 4096
    assert torch.equal(hits.rows, whole.rows)
    assert torch.equal(hits.distances, whole.distances)


def test_hits_at_the_same_distance_go_by_row() -> None:
    hits = nearest.nearest_first(torch.tensor([[2.0, 1.0, 1.0], [0.0, 0.0, 0.0]]), torch.tensor([[5, 9, 7], [3, 1, 2]]))
    assert hits.rows.tolist() == [[7, 9, 5], [1, 2, 3]]
    assert hits.distances.tolist() == [[1.0, 1.0, 2.0], [0.0, 0.0, 0.0]]


def test_takes_lists_and_whole_numbers() -> None:
    hits = ExactIndex([[0, 0], [3, 4], [6, 8]]).search([[0, 0]], 2)
    assert hits.rows.tolist() == [[0, 1]]
    assert hits.distances.tolist() == [[0.0, 5.0]]


@pytest.mark.parametrize(
    ("embeddings", "message"),
    [
        (torch.zeros(3, 0), r"embeddings must be a matrix.*got shape \(3, 0\)"),
        (torch.zeros(0, 3), r"embeddings must be a matrix.*got shape \(0, 3\)"),
        (torch.zeros(3), r"embeddings must be a matrix.*got shape \(3,\)"),
        (torch.tensor([[1.0], [float("nan")]]), r"embeddings has NaN or infinite values in 1 of 2 rows \(rows 1\)"),
    ],
)
def test_refuses_embeddings(embeddings: torch.Tensor, message: str) -> None:
    with pytest.raises(InputError, match=message):
        ExactIndex(embeddings)


@pytest.mark.parametrize(
    ("queries", "k", "message"),
    [
        (torch.zeros(1, 2), 1, "queries must have 3 columns"),
        (torch.zeros(3), 1, "queries must be a matrix"),
        (torch.full((1, 3), float("inf")), 1, "queries has NaN or infinite values"),
        (torch.zeros(1, 3), 0, "k must be a whole number of at least 1, got 0"),
        (torch.zeros(1, 3), 1.5, "k must be a whole number of at least 1, got 1.5"),
    ],
)
def test_refuses_queries(queries: torch.Tensor, k: int, message: str) -> None:
    index = ExactIndex(torch.eye(3))
    with pytest.raises(InputError, match=message):
        index.search(queries, k)


@pytest.mark.gpu
def test_on_the_gpu(make_clusters) -> None:
    stored, _ = make_clusters(0, 5000, 16, 10)
    there, here = ExactIndex(stored.cuda()).search(stored[:50], 10), ExactIndex(stored).search(stored[:50], 10)
    assert there.rows.is_cuda
    assert torch.equal(there.rows.cpu(), here.rows)
