from __future__ import annotations

import json
from collections.abc import Callable

import pytest
import torch
from helpers.draws import draws
from helpers.graphs import cliques
from hypothesis import example, given
from hypothesis import strategies as st
from scipy.stats import binomtest
from sklearn.datasets import load_digits
from torch import Tensor

from semimetric.core.errors import InputError
from semimetric.evaluation import Judged, Trust, hold_back, trust_report, wilson_interval
from semimetric.graph import Posteriors, class_posteriors, nearest_neighbors

LABELS = torch.tensor([0, 0, 0, 1, 1, 1, 1, 2, 2, 5, -1, -1])
"""Three classes that can be held back, and one, 5, that cannot."""

NAMES = torch.tensor([0, 1, 2, 5])

SEEDS = range(10)


def oracle(named: Tensor, sure: float, seen: list[Tensor] | None = None) -> Callable[[Tensor], Posteriors]:
    """Gives every example the class in ``named`` with probability and confidence ``sure``."""

    def propagate(labels: Tensor) -> Posteriors:
        if seen is not None:
            seen.append(labels)
        shares = torch.full((len(named), len(NAMES)), (1 - sure) / 3, dtype=torch.float64)
        shares[torch.arange(len(named)), torch.searchsorted(NAMES, named)] = sure
        return Posteriors(NAMES, shares, torch.full((len(named),), sure, dtype=torch.float64))

    return propagate


def judged_of(right: list[bool], confidence: list[float], probability: list[float]) -> Judged:
    shares = (torch.tensor(values, dtype=torch.float64) for values in (confidence, probability))
    return Judged(torch.tensor(right, dtype=torch.bool), *shares)


def held_back(seen: Tensor) -> Tensor:
    return ((LABELS >= 0) & (seen < 0)).nonzero().flatten()


@pytest.mark.parametrize("folds", [2, 3, 5, 50])
@pytest.mark.parametrize("seed", range(5))
def test_folds_are_disjoint_and_cover_all_that_can_be_held_back(folds: int, seed: int) -> None:
    seen: list[Tensor] = []
    hold_back(oracle(LABELS.clamp_min(0), 1.0, seen), LABELS, folds, seed)
    held = [held_back(labels) for labels in seen]
    assert torch.cat(held).sort().values.tolist() == list(range(9))
    assert len(seen) == min(folds, 9)
    for chosen in (LABELS >= 0, LABELS == 0, LABELS == 1, LABELS == 2):
        sizes = [int(chosen[rows].sum()) for rows in held]
        assert max(sizes) - min(sizes) <= 1
    for labels, rows in zip(seen, held, strict=True):
        assert labels[labels >= 0].unique().tolist() == [0, 1, 2, 5]
        assert torch.equal(labels.index_put((rows,), LABELS[rows]), LABELS)


def test_the_seed_alone_decides() -> None:
    def folds_of(seed: int) -> list[list[int]]:
        seen: list[Tensor] = []
        hold_back(oracle(LABELS.clamp_min(0), 1.0, seen), LABELS, 3, seed)
        return [held_back(labels).tolist() for labels in seen]

    assert folds_of(0) == folds_of(0)
    assert len({str(folds_of(seed)) for seed in range(5)}) > 1


def test_judges_the_held_back_in_their_order() -> None:
    named = LABELS.clamp_min(0)
    named[[1, 5, 9]] = 2  # the last of these is never held back
    judged = hold_back(oracle(named, 0.7), LABELS)
    assert judged.right.tolist() == [True, False, True, True, True, False, True, True, True]
    assert judged.confidence.dtype == judged.probability.dtype == torch.float64
    assert judged.confidence.tolist() == judged.probability.tolist() == pytest.approx([0.7] * 9)


def test_probability_is_that_of_the_named_class_and_confidence_is_as_returned() -> None:
    shares = torch.tensor([[0.6, 0.4], [0.3, 0.7], [0.2, 0.8], [0.9, 0.1], [0.5, 0.5]])
    confidence = torch.tensor([0.1, 0.2, 0.3, 0.4, 0.5])
    judged = hold_back(lambda _: Posteriors(torch.tensor([3, 8]), shares, confidence), [3, 3, 8, 8, -1], folds=2)
    assert judged.right.tolist() == [True, False, True, False]
    assert judged.probability.tolist() == pytest.approx([0.6, 0.7, 0.8, 0.9])
    assert judged.confidence.tolist() == pytest.approx([0.1, 0.2, 0.3, 0.4])


def test_labels_are_left_as_they_were() -> None:
    def spoil(labels: Tensor) -> Posteriors:
        labels.fill_(-1)
        return oracle(LABELS.clamp_min(0), 1.0)(labels)

    before = LABELS.clone()
    assert bool(hold_back(spoil, before).right.all())
    assert torch.equal(before, LABELS)


def test_what_cliques_share_is_named_without_fault() -> None:
    labels = torch.full((30,), -1)
    labels[[0, 3, 7, 10, 14, 18, 20, 21, 29]] = torch.tensor([0, 0, 0, 1, 1, 1, 2, 2, 2])
    judged = hold_back(lambda known: class_posteriors(cliques(3, 10), known), labels, folds=3)
    assert bool(judged.right.all())
    assert judged.probability.tolist() == pytest.approx([1.0] * 9)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"folds": 1}, "folds must be a whole number of at least 2, got 1"),
        ({"folds": 2.5}, "folds must be a whole number of at least 2, got 2.5"),
        ({"labels": torch.tensor([0, 1, 2, -1])}, "a single example of each of their 3 classes"),
        ({"labels": torch.full((12,), -1)}, "at least 2 classes, got 0"),
        ({"labels": torch.zeros(12, dtype=torch.long)}, "at least 2 classes, got 1"),
        ({"labels": LABELS[:, None]}, "one entry per example"),
        ({"labels": LABELS.double()}, "labels must be integers"),
        ({"propagate": lambda labels: labels}, r"propagate must return Posteriors\(classes.*got Tensor"),
        ({"propagate": oracle(torch.zeros(11, dtype=torch.long), 1.0)}, r"shares \(12, C\).*\(11, 4\) and \(11,\)"),
        ({"propagate": lambda _: Posteriors(NAMES[:, None], torch.ones(12, 4), torch.ones(12))}, r"got \(4, 1\)"),
        ({"propagate": lambda _: Posteriors(NAMES, torch.ones(12, 4), torch.ones(12, 1))}, r"and \(12, 1\)"),
        ({"propagate": oracle(LABELS.clamp_min(0), 1.5)}, "propagate returns must lie between 0 and 1"),
        ({"propagate": oracle(LABELS.clamp_min(0), float("nan"))}, "shares that propagate returns has NaN"),
    ],
)
def test_bad_input_is_named(changes: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        hold_back(**({"propagate": oracle(LABELS.clamp_min(0), 1.0), "labels": LABELS} | changes))


@pytest.mark.gpu
def test_gpu_agrees_with_the_cpu() -> None:
    here = cliques(3, 10)
    labels = torch.where(torch.arange(30) % 3 == 0, torch.arange(30) // 10, -1)
    there = hold_back(lambda known: class_posteriors(here.cuda(), known), labels.cuda())
    for a, b in zip(hold_back(lambda known: class_posteriors(here, known), labels), there, strict=True):
        assert torch.allclose(a.double(), b.double(), atol=1e-6)


def test_perfect_propagation() -> None:
    judged = hold_back(oracle(LABELS.clamp_min(0), 1.0), LABELS)
    trust = trust_report(judged, torch.ones(4))
    assert (trust.accuracy, trust.high, trust.judged, trust.calibration_error) == (1.0, 1.0, 9, 0.0)
    assert trust.low == pytest.approx(binomtest(9, 9).proportion_ci(method="wilson").low)
    assert all((row.coverage, row.judged, row.right, row.accuracy) == (1.0, 9, 9, 1.0) for row in trust.levels)


def test_levels_count_what_is_as_confident_or_more() -> None:
    judged = judged_of([True, False, True, True], [0.4, 0.5, 0.85, 0.95], [0.9] * 4)
    trust = trust_report(judged, torch.tensor([0.0, 0.5, 0.8, 0.8, 0.9, 0.95, 0.97, 0.99], dtype=torch.float64))
    assert [row.level for row in trust.levels] == [0.0, 0.5, 0.8, 0.9, 0.95, 0.99]
    assert [row.coverage for row in trust.levels] == [1.0, 0.875, 0.75, 0.5, 0.375, 0.125]
    assert [row.judged for row in trust.levels] == [4, 3, 2, 1, 1, 0]
    assert [row.accuracy for row in trust.levels] == [0.75, 2 / 3, 1.0, 1.0, 1.0, None]
    assert [(row.low, row.high) for row in trust.levels] == [
        wilson_interval(*counts) for counts in [(3, 4), (2, 3), (2, 2), (1, 1), (1, 1), (0, 0)]
    ]


def test_too_confident_propagation_errs_by_the_excess() -> None:
    named = LABELS.clamp_min(0)
    named[[0, 3, 7]] = 5  # 6 of 9 right, each said with 0.95
    trust = trust_report(hold_back(oracle(named, 0.95), LABELS), torch.full((2,), 0.95))
    assert trust.accuracy == pytest.approx(6 / 9)
    assert trust.calibration_error == pytest.approx(0.95 - 6 / 9)


def test_calibration_error_by_hand() -> None:
    """Gaps within a bin cancel, gaps of two bins do not: (|1 - 0.95| + |0 - 0.85| + |1 - 1.5|) / 4."""
    trust = trust_report(
        judged_of([True, False, True, False], [0.5] * 4, [0.95, 0.85, 0.71, 0.79]), torch.full((3,), 0.5)
    )
    assert trust.calibration_error == pytest.approx((0.05 + 0.85 + 0.5) / 4)


def test_the_sentence_quotes_the_confident() -> None:
    right = torch.arange(50) >= 3
    confidence = torch.full((50,), 0.95, dtype=torch.float64)
    confidence[:14] = 0.7
    confidence[2] = 0.9
    trust = trust_report(Judged(right, confidence, confidence), [0.91] * 71 + [0.2] * 29)
    assert trust.sentence() == (
        "47 of 50 held-out labels were predicted correctly (94 %, 95 % interval 84 to 98 %). At confidence 0.9 or more "
        "(71 % of the unlabelled examples), 36 of 37 were correct (97 %, 95 % interval 86 to more than 99 %)."
    )


def test_the_sentence_goes_down_to_a_level_with_enough() -> None:
    confidence = torch.tensor([0.95] * 9 + [0.85] * 2 + [0.1] * 9)
    sentence = trust_report(Judged(confidence > 0.9, confidence, confidence), [0.0, 0.85, 0.95]).sentence()
    assert "At confidence 0.8 or more (67 % of the unlabelled examples), 9 of 11 were correct (82 %" in sentence


def test_the_sentence_does_not_speak_of_too_few() -> None:
    trust = trust_report(judged_of([True, False], [0.95, 0.3], [0.9, 0.9]), [0.99])
    assert trust.sentence() == (
        "1 of 2 held-out labels was predicted correctly (50 %, 95 % interval 9 to 91 %). "
        "Too few held-out labels with confidence 0.5 or more (1) to calibrate the confidence."
    )


def test_nearly_none_is_not_said_to_be_none() -> None:
    judged = judged_of([True] * 12, [0.9] * 12, [0.9] * 12)
    confidence = torch.zeros(1000)
    assert "(0 % of the unlabelled" in trust_report(judged, confidence).sentence()
    confidence[:5] = 1.0
    assert "(less than 1 % of the unlabelled" in trust_report(judged, confidence).sentence()


def test_as_dict_survives_json() -> None:
    trust = trust_report(judged_of([True, False], [0.6, 0.3], [0.9, 0.9]), [0.5, 0.1])
    found = trust.as_dict()
    assert json.loads(json.dumps(found)) == found
    assert found["accuracy"] == 0.5
    assert found["levels"][1] | {"low": 0, "high": 0} == {
        "level": 0.5, "coverage": 0.5, "judged": 1, "right": 1, "accuracy": 1.0, "low": 0, "high": 0
    }  # fmt: skip


def test_rounding_above_one_is_forgiven() -> None:
    trust = trust_report(judged_of([True], [1 + 1e-7], [1 + 1e-7]), [1 + 1e-7])
    assert (trust.calibration_error, trust.levels[-1].coverage, trust.levels[-1].judged) == (0.0, 1.0, 1)


@given(
    st.lists(st.tuples(st.booleans(), st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=40),
    st.lists(st.floats(0, 1), min_size=1, max_size=40),
)
@example([(True, 1.0, 1.0)], [0.0])
@draws(60)
def test_shares_are_shares_and_levels_are_nested(judged: list, confidence_all: list) -> None:
    trust = trust_report(judged_of(*map(list, zip(*judged, strict=True))), confidence_all)
    coverages = [row.coverage for row in trust.levels]
    assert coverages == sorted(coverages, reverse=True)
    counts = [row.judged for row in trust.levels]
    assert counts == sorted(counts, reverse=True)
    assert coverages[0] == 1.0
    assert counts[0] == len(judged)
    assert all(0 <= share <= 1 for share in [*coverages, trust.calibration_error])
    for row in (trust, *trust.levels):
        middle = 0.5 if row.accuracy is None else row.accuracy
        assert 0 <= row.low <= middle <= row.high <= 1


@pytest.mark.parametrize(
    ("judged", "confidence_all", "message"),
    [
        (judged_of([], [], []), [0.5], r"judged.confidence must have one entry .* got shape \(0,\)"),
        (Judged(torch.ones(2), torch.ones(2), torch.ones(2)), [0.5], "judged.right must be true or false"),
        (judged_of([True], [0.5, 0.5], [0.5]), [0.5], "of the same examples, got 1, 2 and 1"),
        (judged_of([True], [0.5], [1.5]), [0.5], "judged.probability must lie between 0 and 1, .* 1.5 to 1.5"),
        (judged_of([True], [0.5], [0.5]), [], r"confidence_all must have one entry .* got shape \(0,\)"),
        (judged_of([True], [0.5], [0.5]), [[0.5]], r"confidence_all must have one entry .* got shape \(1, 1\)"),
        (judged_of([True], [0.5], [0.5]), [0.5, -0.1], "confidence_all must lie between 0 and 1"),
        (judged_of([True], [0.5], [0.5]), [float("nan")], "confidence_all has NaN"),
    ],
)
def test_what_cannot_be_reported_is_named(judged: Judged, confidence_all: list, message: str) -> None:
    with pytest.raises(InputError, match=message):
        trust_report(judged, confidence_all)


@pytest.mark.parametrize("total", [1, 2, 7, 50, 1000])
def test_agrees_with_scipy(total: int) -> None:
    for right in {0, 1, total // 3, total - 1, total}:
        expected = binomtest(right, total).proportion_ci(confidence_level=0.95, method="wilson")
        assert wilson_interval(right, total) == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_none_and_all_reach_the_ends_exactly() -> None:
    assert all(wilson_interval(0, n)[0] == 0.0 and wilson_interval(n, n)[1] == 1.0 for n in range(1, 200))


def test_of_nothing_nothing_is_known() -> None:
    assert wilson_interval(0, 0) == (0.0, 1.0)


@pytest.mark.parametrize(("right", "total"), [(3, 2), (-1, 2), (0, -1)])
def test_bad_counts_are_named(right: int, total: int) -> None:
    with pytest.raises(InputError, match="right must be between 0 and total"):
        wilson_interval(right, total)


@pytest.fixture(scope="module")
def digits() -> tuple[Tensor, Tensor]:
    points, classes = load_digits(return_X_y=True)
    return nearest_neighbors(points, 10), torch.from_numpy(classes).long()


def drawn(classes: Tensor, seed: int) -> Tensor:
    """Five labels of each class, drawn at random."""
    order = torch.randperm(len(classes), generator=torch.Generator().manual_seed(seed))
    rows = torch.cat([order[classes[order] == label][:5] for label in range(10)])
    return torch.full_like(classes, -1).index_put_((rows,), classes[rows])


@pytest.fixture(scope="module")
def reports(digits: tuple[Tensor, Tensor]) -> list[tuple[Trust, float]]:
    """What is estimated and what is true, for every seed."""
    neighbors, classes = digits
    found = []
    for seed in SEEDS:
        labels = drawn(classes, seed)
        rest = labels < 0
        named = class_posteriors(neighbors, labels, gamma=0.9)
        judged = hold_back(lambda known: class_posteriors(neighbors, known, gamma=0.9), labels, seed=seed)
        right = named.classes[named.shares.argmax(1)] == classes
        found.append((trust_report(judged, named.confidence[rest]), float(right[rest].double().mean())))
    return found


def test_intervals_hold_the_true_accuracy(reports: list[tuple[Trust, float]]) -> None:
    assert all(trust.judged == 50 for trust, _ in reports)
    assert sum(trust.low <= truth <= trust.high for trust, truth in reports) >= 8


def test_the_estimate_is_close_on_average(reports: list[tuple[Trust, float]]) -> None:
    errors = torch.tensor([trust.accuracy - truth for trust, truth in reports])
    assert -0.05 < float(errors.mean()) < 0.02


def test_the_confident_are_named_more_rightly(reports: list[tuple[Trust, float]]) -> None:
    rows = zip(*(trust.levels for trust, _ in reports), strict=True)
    counts = [(sum(row.right for row in level), sum(row.judged for row in level)) for level in rows]
    accuracies = [right / judged for right, judged in counts[:4]]
    assert counts[3][1] >= 50
    assert accuracies == sorted(accuracies)
    assert accuracies[2] > accuracies[0] + 0.03


def test_of_labels_that_mean_nothing_none_is_named_but_by_chance(digits: tuple[Tensor, Tensor]) -> None:
    neighbors, classes = digits
    right = []
    for seed in SEEDS:
        labels = drawn(classes, seed)
        rows = (labels >= 0).nonzero().flatten()
        order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))
        labels[rows] = labels[rows[order]]
        right.append(hold_back(lambda known: class_posteriors(neighbors, known, gamma=0.9), labels).right)
    assert float(torch.cat(right).double().mean()) == pytest.approx(0.1, abs=0.05)
