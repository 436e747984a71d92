from __future__ import annotations

import sys

import pytest
import torch
from helpers.draws import draws
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from semimetric.core.errors import InputError
from semimetric.serve.suggest import Suggestions, suggest

module = sys.modules["semimetric.serve.suggest"]  # the package has the function by this name


def blobs(sizes: list[int], centres: list[tuple[float, float]], seed: int = 0) -> tuple[Tensor, Tensor]:
    """Points of deviation 0.1 around centres in the plane, with the number of their blob."""
    group = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    noise = 0.1 * torch.randn(len(group), 2, generator=torch.Generator().manual_seed(seed))
    return torch.tensor(centres)[group] + noise, group


def labelled(group: Tensor, *blob: int) -> Tensor:
    """One label in each of the blobs named."""
    labels = torch.full_like(group, -1)
    for number in blob:
        labels[(group == number).nonzero()[0]] = number
    return labels


def ask(points: Tensor, labels: Tensor, count: int, sure: float | Tensor = 0.5, seed: int = 0) -> Suggestions:
    """Suggestions where every example is taken for the first of two classes with the same certainty."""
    sure = torch.as_tensor(sure).expand(len(points))
    shares = torch.stack([(1 + sure) / 2, (1 - sure) / 2], dim=1)
    return suggest(points, labels, shares, sure, count, seed)


def brute_force(points: Tensor, labels: Tensor, uncertainty: Tensor, count: int) -> list[int]:
    """Greedy by the definition of the cost alone."""
    squares = torch.cdist(points.double(), points.double()).square()
    chosen = (labels >= 0).nonzero().flatten().tolist()
    begun = len(chosen)
    uncertainty = uncertainty.double() * (labels < 0)
    for _ in range(count):
        others = [row for row in range(len(points)) if row not in chosen]
        costs = [float((uncertainty * squares[:, [*chosen, row]].amin(1)).sum()) for row in others]
        chosen.append(others[costs.index(min(costs))])
    return chosen[begun:]


def test_an_unlabelled_cluster_far_from_all_labels_comes_first() -> None:
    points, group = blobs([300, 300, 20], [(0, 0), (2, 0), (9, 9)])
    found = ask(points, labelled(group, 0, 1), 3)
    assert group[found.rows[0]] == 2
    assert found.distances[0] > 9
    assert found.near[0] == 20


def test_a_cluster_without_labels_is_met_even_if_it_is_taken_for_another_class_with_certainty() -> None:
    points, group = blobs([300, 300, 100], [(0, 0), (2, 0), (9, 9)])
    sure = torch.where(group == 2, 0.95, 0.5)
    assert group[ask(points, labelled(group, 0, 1), 1, sure).rows[0]] == 2


def test_every_unknown_cluster_gets_one_before_any_gets_two() -> None:
    centres = [(0.0, 0.0), (3.0, 0.0), (0.0, 4.0), (-4.0, 1.0), (2.0, -4.0)]
    points, group = blobs([50, 30, 100, 200, 60], centres)
    found = group[ask(points, labelled(group, 0), 6).rows]
    assert sorted(found[:4].tolist()) == [1, 2, 3, 4]


def test_without_any_label_every_cluster_gets_one() -> None:
    points, group = blobs([40, 50, 60, 70], [(0, 0), (3, 0), (0, 4), (-4, 1)])
    found = suggest(points, torch.full_like(group, -1), torch.zeros(len(group), 0), torch.zeros(len(group)), 4)
    assert sorted(group[found.rows].tolist()) == [0, 1, 2, 3]


def test_without_any_label_the_first_is_amid_many_and_not_between_them() -> None:
    points, group = blobs([60, 40, 1], [(-3, 0), (3, 0), (0, 0)])
    first = suggest(points, torch.full_like(group, -1), torch.zeros(len(group), 0), torch.zeros(len(group)), 1)
    assert group[first.rows[0]] == 0


def test_uncertain_examples_come_first_where_labels_are_equally_near() -> None:
    points, group = blobs([100, 100], [(0, 0), (3, 0)])
    unsure = ask(points, labelled(group, 0, 1), 5, torch.where(group == 1, 0.2, 0.99))
    assert (group[unsure.rows] == 1).all()
    assert torch.allclose(unsure.uncertainty, torch.full((5,), 0.8, dtype=torch.float64))


@pytest.mark.parametrize("which", ["margin", "confidence"])
def test_an_example_is_as_certain_as_the_less_sure_of_margin_and_confidence(which: str) -> None:
    points, group = blobs([100, 100], [(0, 0), (3, 0)])
    unsure = group == 1
    shares = torch.tensor([[1.0, 0.0]]).repeat(200, 1)
    confidence = torch.ones(200)
    if which == "margin":
        shares[unsure] = torch.tensor([0.55, 0.45])
    else:
        confidence[unsure] = 0.1
    found = suggest(points, labelled(group, 0, 1), shares, confidence, 4)
    assert (group[found.rows] == 1).all()
    assert torch.allclose(found.uncertainty, torch.full((4,), 0.9, dtype=torch.float64))


def test_a_suggestion_is_typical_of_its_cluster() -> None:
    points, group = blobs([100, 101], [(0, 0), (5, 0)])
    row = ask(points, labelled(group, 0), 1).rows[0]
    to_centre = (points - points[group == 1].mean(0)).norm(dim=1)
    assert to_centre[row] <= to_centre[group == 1].sort().values[5]


@pytest.mark.parametrize("seed", range(3))
def test_gains_looked_up_late_choose_as_the_cost_itself_does(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "AT_ONCE", 2)
    monkeypatch.setattr(module, "BLOCK_ENTRIES", 50)
    generator = torch.Generator().manual_seed(seed)
    points = torch.randn(60, 3, generator=generator)
    labels = torch.full((60,), -1)
    labels[:4] = torch.arange(4)
    sure = torch.rand(60, generator=generator)
    found = ask(points, labels, 12, sure)
    assert found.rows.tolist() == brute_force(points, labels, 1 - sure, 12)
    assert (found.gains.diff() <= 1e-12).all()
    assert 0 < found.gains.sum() <= 1


def test_the_gain_is_the_share_of_the_cost_that_goes(make_clusters) -> None:
    points, group = make_clusters(0, 80, 4, 4)
    labels = labelled(group, 0, 1)
    found = ask(points, labels, 80 - 2)
    assert found.gains.sum() == pytest.approx(1.0)
    assert sorted(found.rows.tolist()) == (labels < 0).nonzero().flatten().tolist()


def test_a_sample_of_candidates_still_meets_small_unknown_clusters(monkeypatch: pytest.MonkeyPatch) -> None:
    points, group = blobs([3000, 12], [(0, 0), (6, 0)])
    monkeypatch.setattr(module, "CANDIDATES", 40)
    first, second = (ask(points, labelled(group, 0), 3, seed=seed) for seed in (1, 2))
    assert group[first.rows[0]] == group[second.rows[0]] == 1
    assert not torch.equal(first.rows, second.rows)
    assert torch.equal(first.rows, ask(points, labelled(group, 0), 3, seed=1).rows)


def test_memory_stays_within_blocks(largest_tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BLOCK_ENTRIES", 5000)
    monkeypatch.setattr(module, "CANDIDATES", 50)
    points, group = blobs([400, 200], [(0, 0), (6, 0)])
    with largest_tensor() as largest:
        ask(points, labelled(group, 0), 5)
    assert largest.entries <= 5000


def test_duplicates_and_certainty_leave_something_to_suggest() -> None:
    points = torch.tensor([[0.0, 0.0]] * 10 + [[1.0, 0.0]] * 5 + [[4.0, 0.0]] * 5)
    labels = torch.full((20,), -1)
    labels[0] = 0
    found = suggest(points, labels, torch.ones(20, 1), torch.ones(20), 19)
    assert points[found.rows[:2], 0].tolist() == [4.0, 1.0]
    assert sorted(found.rows.tolist()) == list(range(1, 20))
    assert torch.isfinite(found.gains).all()


def test_scale_and_place_of_the_embedding_do_not_matter(make_clusters) -> None:
    points, group = make_clusters(3, 200, 6, 5)
    labels = labelled(group, 0, 1)
    moved = 1e-3 * points.double() + 1e4
    assert torch.equal(ask(points.double(), labels, 8).rows, ask(moved, labels, 8).rows)


@draws(60)
@given(
    count=st.integers(1, 12),
    extra=st.integers(1, 30),
    width=st.integers(1, 4),
    classes=st.integers(0, 4),
    with_labels=st.integers(0, 6),
    distinct=st.integers(2, 50),
    seed=st.integers(0, 2**31),
)
def test_as_many_different_unlabelled_rows_as_asked_for(
    count: int, extra: int, width: int, classes: int, with_labels: int, distinct: int, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    size = count + extra + with_labels
    points = torch.randn(distinct, width, generator=generator)[torch.arange(size) % distinct]
    labels = torch.full((size,), -1)
    labels[torch.randperm(size, generator=generator)[:with_labels]] = torch.arange(with_labels) % max(classes, 1)
    shares = torch.randn(size, classes, generator=generator).softmax(1)
    confidence = torch.rand(size, generator=generator)
    first, again = (suggest(points, labels, shares, confidence, count, seed) for _ in range(2))
    assert all(column.shape == (count,) for column in first)
    assert len(first.rows.unique()) == count
    assert (labels[first.rows] == -1).all()
    assert (first.gains >= 0).all()
    assert all(torch.equal(one, other) for one, other in zip(first, again, strict=True))


@pytest.mark.parametrize("count", [0, -1, 9])
def test_more_than_there_are_is_refused(count: int) -> None:
    points, group = blobs([5, 5], [(0, 0), (3, 0)])
    sentence = rf"count must be at least 1 and at most the number of unlabelled examples \(8\), got {count}\."
    with pytest.raises(InputError, match=sentence):
        ask(points, labelled(group, 0, 1), count)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("shares", {"shares": torch.ones(9, 2)}),
        ("shares", {"shares": torch.ones(10)}),
        ("shares", {"shares": torch.full((10, 2), 3.0)}),
        ("shares", {"shares": torch.full((10, 2), torch.nan)}),
        ("confidence", {"confidence": torch.ones(10, 1)}),
        ("confidence", {"confidence": torch.full((10,), -0.1)}),
        ("labels", {"labels": torch.zeros(9, dtype=torch.long)}),
        ("embeddings", {"embeddings": torch.ones(10, 2)}),
    ],
)
def test_what_does_not_fit_is_refused_by_name(name: str, change: dict[str, Tensor]) -> None:
    fitting = {
        "embeddings": torch.eye(10),
        "labels": torch.full((10,), -1),
        "shares": torch.full((10, 2), 0.5),
        "confidence": torch.zeros(10),
    }
    with pytest.raises(InputError, match=rf"^{name} "):
        suggest(**(fitting | change), count=1)
