from __future__ import annotations

import pytest
import torch
from helpers.draws import draws
from hypothesis import given
from hypothesis import strategies as st

from semimetric.core.errors import InputError
from semimetric.graph import nearest_neighbors, propagate_affinities
from semimetric.mining import mine_triplets, triplet_shares


@given(st.integers(0, 10_000), st.integers(2, 9))
@draws(30)
def test_halves_are_disjoint_ordered_and_complete(seed: int, k: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    neighbors = nearest_neighbors(torch.randn(25, 4, generator=generator), k)
    labels = torch.randint(-1, 3, (25,), generator=generator)
    affinities = propagate_affinities(neighbors, labels)
    triplets = mine_triplets(neighbors, affinities)
    assert triplets.shape == (25 * (k // 2), 3)
    weight = {(i, int(j)): float(a) for i in range(25) for j, a in zip(neighbors[i], affinities[i], strict=True)}
    for anchor in range(25):
        rows = triplets[triplets[:, 0] == anchor].tolist()
        positives, negatives = {p for _, p, _ in rows}, {n for _, _, n in rows}
        assert len(positives) == len(negatives) == k // 2
        assert not positives & negatives
        assert positives | negatives <= set(neighbors[anchor].tolist())
        assert min(weight[anchor, p] for p in positives) >= max(weight[anchor, n] for n in negatives) - 1e-12


def test_pairs_ranks_as_the_paper_does_and_drops_the_median_of_an_odd_number() -> None:
    neighbors = torch.tensor([[1, 2, 3, 4, 5]] + [[0, 1, 2, 3, 4]] * 5)
    neighbors[1:] = torch.tensor([[(i + s) % 6 for s in range(1, 6)] for i in range(1, 6)])
    affinities = torch.tensor([[0.1, 0.5, 0.3, 0.4, 0.2]]).repeat(6, 1)
    assert mine_triplets(neighbors, affinities, anchors=[0]).tolist() == [[0, 2, 5], [0, 4, 1]]


def test_equal_affinities_keep_the_order_of_distance() -> None:
    neighbors = torch.tensor([[3, 1, 2, 4], [0, 2, 3, 4], [0, 1, 3, 4], [0, 1, 2, 4], [0, 1, 2, 3]])
    assert mine_triplets(neighbors, torch.zeros(5, 4), anchors=[0]).tolist() == [[0, 3, 2], [0, 1, 4]]


def test_affinities_that_differ_by_rounding_count_as_equal() -> None:
    """In an isolated clique all affinities are equal in exact arithmetic, so distance alone decides."""
    generator = torch.Generator().manual_seed(0)
    cliques = [torch.randn(7, 3, generator=generator, dtype=torch.float64) + 1000.0 * i for i in range(12)]
    neighbors = nearest_neighbors(torch.cat(cliques), 6)
    affinities = propagate_affinities(neighbors, torch.full((84,), -1))
    triplets = mine_triplets(neighbors, affinities).reshape(84, 3, 3)
    assert torch.equal(triplets[:, :, 1], neighbors[:, :3])
    assert torch.equal(triplets[:, :, 2], neighbors[:, 3:])


def test_shares_of_right_triplets() -> None:
    labels = torch.tensor([0, 0, 1, 1])
    shares = triplet_shares(torch.tensor([[0, 1, 2], [0, 1, 1], [0, 2, 3], [2, 0, 3]]), labels)
    assert shares == {"positive": 0.5, "negative": 0.5, "both": 0.25}


@pytest.mark.parametrize(
    ("affinities", "anchors", "message"),
    [
        (torch.zeros(2, 2), None, "shape of neighbors"),
        (torch.zeros(3, 2), [3], "lies outside"),
        (torch.zeros(3, 2), [], "non-empty list"),
        (torch.zeros(3, 2), [0.5], "non-empty list"),
    ],
)
def test_bad_input_is_named(affinities: torch.Tensor, anchors: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        mine_triplets(torch.tensor([[1, 2], [0, 2], [0, 1]]), affinities, anchors)


def test_one_neighbour_is_too_few() -> None:
    with pytest.raises(InputError, match="at least 2 neighbours"):
        mine_triplets(torch.tensor([[1], [0]]), torch.zeros(2, 1))
