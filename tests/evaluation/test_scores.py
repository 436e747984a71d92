from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers.draws import draws
from hypothesis import given
from hypothesis import strategies as st

from semimetric.core.errors import InputError
from semimetric.evaluation import evaluate, map_at_r, nmi, recall_at_k, scores
from semimetric.graph import nearest


@given(st.integers(0, 10_000))
@draws(25)
def test_recall_equals_a_naive_loop(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    points = torch.randn(30, 3, generator=generator, dtype=torch.float64)
    labels = torch.randint(4, (30,), generator=generator)
    found = recall_at_k(points, labels, ks=(1, 2, 4, 8))
    for k in (1, 2, 4, 8):
        hits = 0
        for i in range(30):
            order = sorted((j for j in range(30) if j != i), key=lambda j: float((points[i] - points[j]).norm()))
            hits += any(labels[j] == labels[i] for j in order[:k])
        assert found[k] == pytest.approx(hits / 30)


@given(st.integers(0, 10_000))
@draws(25)
def test_map_at_r_equals_a_naive_loop(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    points = torch.randn(20, 3, generator=generator, dtype=torch.float64)
    labels = torch.randint(4, (20,), generator=generator)
    labels[0] = 9  # alone in its class: no query
    precisions = []
    for i in range(20):
        order = sorted((j for j in range(20) if j != i), key=lambda j: float((points[i] - points[j]).norm()))
        hits = [bool(labels[j] == labels[i]) for j in order]
        if sum(hits):
            gained = (sum(hits[: rank + 1]) / (rank + 1) for rank in range(sum(hits)) if hits[rank])
            precisions.append(sum(gained) / sum(hits))
    assert map_at_r(points, labels) == pytest.approx(np.mean(precisions))


def test_map_at_r_of_a_large_class_takes_bounded_memory(
    make_clusters, largest_tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    points, _ = make_clusters(0, 600, 4, 3, 1.0)
    labels = torch.arange(600) % 7 % 2  # classes of two sizes
    whole = map_at_r(points, labels)
    monkeypatch.setattr(scores, "RANKED_ENTRIES", 5_000)
    monkeypatch.setattr(nearest, "BLOCK_ENTRIES", 5_000)
    with largest_tensor() as largest:
        assert map_at_r(points, labels) == pytest.approx(whole, abs=1e-12)
    assert largest.entries <= 20_000 < 600 * 342  # not a row of ranks for every example


def test_map_at_r_needs_a_class_of_two() -> None:
    with pytest.raises(InputError, match="at least 2 examples"):
        map_at_r([[0.0], [1.0]], [0, 1])


def test_perfect_embedding_scores_one_and_a_random_one_does_not() -> None:
    labels = np.repeat(np.arange(5), 20)
    perfect = np.eye(5)[labels] + 1e-3 * np.random.default_rng(0).normal(size=(100, 5))
    assert evaluate(perfect, labels) == pytest.approx(
        {"nmi": 1.0, "recall@1": 1.0, "recall@2": 1.0, "recall@4": 1.0, "recall@8": 1.0}
    )
    random = np.random.default_rng(1).normal(size=(100, 5))
    assert evaluate(random, labels)["nmi"] < 0.3


def test_nmi_is_mutual_information_over_the_average_entropy() -> None:
    labels = np.array([0] * 6 + [1] * 6)
    points = np.array([[0.0]] * 4 + [[10.0]] * 8) + np.linspace(0, 0.1, 12)[:, None]
    table = np.array([[4, 2], [0, 6]]) / 12
    marginals = table.sum(1), table.sum(0)
    entropy = [-(p * np.log(p)).sum() for p in marginals]
    outer = np.outer(*marginals)
    information = sum(t * np.log(t / o) for t, o in zip(table.flat, outer.flat, strict=True) if t)
    assert nmi(points, labels) == pytest.approx(2 * information / sum(entropy))


@pytest.mark.parametrize("kind", [np.uint8, np.uint16, np.int8, np.int32])
def test_labels_of_any_integer_type_will_do(kind: type) -> None:
    points = np.random.default_rng(2).normal(size=(40, 3))
    labels = np.arange(40) % 3
    assert evaluate(points, labels.astype(kind)) == evaluate(points, labels)


def test_unlabelled_rows_are_left_out() -> None:
    points = np.random.default_rng(2).normal(size=(40, 3))
    labels = np.arange(40) % 3
    extended = np.vstack([points, np.zeros((5, 3))])
    assert evaluate(extended, np.append(labels, [-1] * 5)) == evaluate(points, labels)


@pytest.mark.parametrize(
    ("points", "labels", "ks", "message"),
    [
        (np.eye(4), [0, 0, 0, 0], (1,), "at least 2 classes"),
        (np.eye(4), [0, 1, 0], (1,), r"shape \(4,\)"),
        (np.eye(4), [0, 1, 0, 1], (4,), r"less one \(3\)"),
        (np.zeros((4, 2)), [0, 1, 0, 1], (1,), "constant"),
        (np.full((4, 2), np.nan), [0, 1, 0, 1], (1,), "NaN"),
        ([["a"]], [0], (1,), "embeddings must be numbers"),
    ],
)
def test_bad_input_is_named(points: object, labels: object, ks: tuple[int, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        recall_at_k(points, labels, ks)
