from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from semimetric.mining import labelled_pairs, spread_pairs


@given(count=st.integers(0, 40), limit=st.integers(1, 900))
def test_pairs_are_distinct_and_as_many_as_fit(count: int, limit: int) -> None:
    found = spread_pairs(count, limit)
    assert len(found) == min(limit, count * (count - 1) // 2)
    assert len(found.unique(dim=0)) == len(found)
    assert bool((found[:, 0] < found[:, 1]).all())
    assert len(found) == 0 or int(found.max()) < count


def test_of_many_items_all_are_met_and_sorted_classes_are_met_alike() -> None:
    found = spread_pairs(10_000, 20_000)
    met = torch.bincount(found.flatten(), minlength=10_000)
    assert float((met == 0).double().mean()) < 0.1
    assert int(met.max()) <= 20
    sorted_classes = torch.arange(10_000) // 1000
    same = (sorted_classes[found[:, 0]] == sorted_classes[found[:, 1]]).double().mean()
    assert 0.08 < float(same) < 0.12


@given(st.lists(st.integers(0, 4), min_size=2, max_size=30), st.integers(1, 50), st.integers(1, 50))
def test_labelled_pairs_are_right_distinct_and_as_many_as_fit(labels: list[int], most: int, more: int) -> None:
    classes = torch.tensor(labels)
    similar, dissimilar = labelled_pairs(classes, most, more)
    same = sum(a == b for i, a in enumerate(labels) for b in labels[i + 1 :])
    total = len(labels) * (len(labels) - 1) // 2
    assert [len(similar), len(dissimilar)] == [min(most, same), min(more, total - same)]
    assert bool((classes[similar[:, 0]] == classes[similar[:, 1]]).all())
    assert bool((classes[dissimilar[:, 0]] != classes[dissimilar[:, 1]]).all())
    for found in (similar, dissimilar):
        assert len(found.sort(1).values.unique(dim=0)) == len(found)


def test_equal_classes_do_not_alias() -> None:
    """With classes of one size, evenly spaced picks would meet few of the examples."""
    similar, dissimilar = labelled_pairs(torch.arange(1000) // 10, 1000, 1000)
    assert len(similar.unique()) > 700
    assert len(dissimilar.unique()) > 700


def test_no_list_of_all_pairs_is_written(largest_tensor) -> None:
    with largest_tensor() as recorded:
        spread_pairs(50_000, 100)
        labelled_pairs(torch.arange(50_000) % 7, 100, 100)
    assert recorded.entries <= 200_000
