from __future__ import annotations

import pytest
import torch
from helpers.draws import draws
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from semimetric.core.errors import InputError
from semimetric.graph import nearest_neighbors, node_degrees, symmetric_edges


def random_graph(seed: int, count: int, k: int) -> tuple[Tensor, Tensor]:
    """Neighbour lists of random points and random directed weights."""
    generator = torch.Generator().manual_seed(seed)
    neighbors = nearest_neighbors(torch.randn(count, 3, generator=generator, dtype=torch.float64), k)
    return neighbors, torch.rand(count, k, generator=generator, dtype=torch.float64)


def by_loops(neighbors: Tensor, weights: Tensor | None) -> dict[tuple[int, int], float]:
    """Weight of each pair from the definition."""
    count = len(neighbors)
    lists = neighbors.tolist()
    pairs = {}
    for i in range(count):
        for j in range(i + 1, count):
            if j in lists[i] or i in lists[j]:
                there = weights[i, lists[i].index(j)].item() if weights is not None and j in lists[i] else 0.0
                back = weights[j, lists[j].index(i)].item() if weights is not None and i in lists[j] else 0.0
                pairs[i, j] = 1.0 if weights is None else (there + back) / 2
    return pairs


@given(st.integers(0, 10_000), st.integers(2, 25), st.booleans(), st.data())
@draws(60)
def test_equals_the_double_loop_in_ascending_order(seed: int, count: int, weighted: bool, data: st.DataObject) -> None:
    neighbors, directed = random_graph(seed, count, data.draw(st.integers(1, count - 1)))
    given_weights = directed if weighted else None
    pairs, weights = symmetric_edges(neighbors, given_weights)
    expected = by_loops(neighbors, given_weights)
    assert [tuple(pair) for pair in pairs.tolist()] == list(expected)
    assert weights.tolist() == list(expected.values())


def test_a_pair_listed_one_way_has_half_the_weight_and_both_ways_the_mean() -> None:
    neighbors = torch.tensor([[1], [0], [1]])
    pairs, weights = symmetric_edges(neighbors, torch.tensor([[3.0], [1.0], [5.0]]))
    assert pairs.tolist() == [[0, 1], [1, 2]]
    assert weights.tolist() == [2.0, 2.5]
    assert weights.dtype == torch.float64


@given(st.integers(0, 10_000), st.integers(2, 30))
@draws(40)
def test_pairs_carry_half_of_what_directed_edges_do(seed: int, count: int) -> None:
    neighbors, directed = random_graph(seed, count, max(1, count // 3))
    _, weights = symmetric_edges(neighbors, directed)
    assert weights.sum().item() == pytest.approx(directed.sum().item() / 2, rel=1e-12)


def test_degrees_equal_the_loop_and_orphans_have_none() -> None:
    pairs = torch.tensor([[0, 1], [0, 3], [1, 3]])
    degrees = node_degrees(pairs, torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64), 5)
    assert degrees.tolist() == [3.0, 5.0, 0.0, 6.0, 0.0]
    none = node_degrees(torch.zeros(0, 2, dtype=torch.long), torch.zeros(0, dtype=torch.float64), 3)
    assert none.tolist() == [0.0, 0.0, 0.0]


def test_renumbering_the_nodes_renumbers_the_degrees() -> None:
    neighbors, directed = random_graph(4, 40, 5)
    order = torch.randperm(40, generator=torch.Generator().manual_seed(1))
    number = order.argsort()
    before = node_degrees(*symmetric_edges(neighbors, directed), 40)
    after = node_degrees(*symmetric_edges(number[neighbors[order]], directed[order]), 40)
    assert torch.allclose(after, before[order], rtol=1e-13)


def test_no_array_grows_with_the_square(largest_tensor) -> None:
    neighbors, directed = random_graph(0, 400, 3)
    with largest_tensor() as largest:
        node_degrees(*symmetric_edges(neighbors, directed), 400)
    assert 0 < largest.entries <= 2 * 2 * neighbors.numel()


def test_bad_input_is_named() -> None:
    neighbors, directed = random_graph(0, 10, 3)
    with pytest.raises(InputError, match=r"shape \(10, 3\), got \(10, 2\)"):
        symmetric_edges(neighbors, directed[:, :2])
    with pytest.raises(InputError, match="own neighbour"):
        symmetric_edges(torch.tensor([[0], [0]]))
