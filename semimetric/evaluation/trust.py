"""How far pseudo-labels can be trusted, from nothing but the labels there are.

Some labels are held back, the rest is propagated, and the held-back ones tell how often examples are named rightly and
whether the confidence says when. What to know about such an estimate:

- Each held-back label is named from fewer labels than there are, so it is slightly pessimistic.
- It speaks of the unlabelled examples only if the labelled ones were drawn at random. Labels that were given because
  they were easy to give flatter it, a fixed number of labels for each class makes rare classes weigh as much as common
  ones, and it knows nothing of classes without a label.
- Labels are few, so it comes with the interval of E. B. Wilson, "Probable inference, the law of succession, and
  statistical inference", Journal of the American Statistical Association 22, 1927. That takes the judgements to be
  independent, and the labels at hand to be neither better nor worse chosen than others; being neither quite, the
  interval holds the true accuracy somewhat less often than in 95 of 100 cases.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from semimetric.core.arrays import as_tensor, check_finite, check_labels
from semimetric.core.errors import InputError
from semimetric.graph.posteriors import Posteriors

LEVELS = (0.0, 0.5, 0.8, 0.9, 0.95, 0.99)
"""Confidences, each standing for itself and all above, of which a report has a row."""

QUOTED = 0.9
"""The level that a sentence quotes, or the highest below it that enough held-back labels reach."""

ENOUGH = 10
"""Held-back labels without which a sentence does not quote a level."""

BINS = 10
"""Bins of equal width for the calibration error."""

ROUNDING = 1e-6
"""How far a probability in single precision may stray from [0, 1]."""


class Judged(NamedTuple):
    """What became of n held-back examples, by ascending number.

    Whether each was named rightly (n,), bool; how confidently (n,) and the posterior of the class that it was given
    (n,), float64 in [0, 1].
    """

    right: Tensor
    confidence: Tensor
    probability: Tensor


@dataclass(frozen=True)
class TrustLevel:
    """What is known of examples with confidence ``level`` or more.

    ``coverage`` is their share of the unlabelled examples. Of the ``judged`` held-back ones among them, ``right`` were
    named rightly; ``accuracy`` is their share, none without any, and [``low``, ``high``] its 95 % interval.
    """

    level: float
    coverage: float
    judged: int
    right: int
    accuracy: float | None
    low: float
    high: float


@dataclass(frozen=True)
class Trust:
    """Accuracy of pseudo-labels as estimated from held-back labels, over all and by confidence.

    The estimate is slightly pessimistic, since held-back labels are named from fewer labels than there are, and it
    assumes that the labelled examples were drawn at random; [``low``, ``high``], its 95 % interval, allows for neither.
    ``calibration_error`` is the mean gap between probability and accuracy; from n labels in a bin, chance alone makes
    an average gap of up to 0.4 / sqrt(n), so that a few dozen labels do not tell a small error from none.
    """

    accuracy: float
    low: float
    high: float
    judged: int
    levels: tuple[TrustLevel, ...]
    calibration_error: float

    def sentence(self) -> str:
        """One sentence for people: all held-back labels, then those of confidence 0.9 or more.

        Where fewer than 10 held-back labels are as confident, the highest level below that 10 of them reach is quoted.
        """
        everyone = self.levels[0]
        named = f"Of {self.judged} held-back labels {everyone.right} {_were(everyone)} named rightly"
        return f"{named} {_in_percent(everyone)}; {self._of_the_confident()}."

    def _of_the_confident(self) -> str:
        enough = [row for row in self.levels if 0 < row.level <= QUOTED and row.judged >= ENOUGH]
        if not enough:
            row = self.levels[1]
            return f"{row.judged} had confidence {row.level:g} or more, too few to say whether to trust it"
        row = enough[-1]
        covered = f"at confidence {row.level:g} or more, {_percent(row.coverage)} % of the unlabelled examples"
        return f"{covered}, {row.right} of {row.judged} {_were(row)} {_in_percent(row)}"

    def as_dict(self) -> dict[str, Any]:
        """All of it as numbers, none, lists and dictionaries, ready for JSON."""
        return asdict(self) | {"levels": [asdict(row) for row in self.levels]}


def hold_back(propagate: Callable[[Tensor], Posteriors], labels: Any, folds: int = 5, seed: int = 0) -> Judged:
    """Hold labels back, a fold at a time, and judge what the others make of them.

    The labels of each class are shuffled and dealt round over the folds, each class beginning where the last one
    ended; so folds are of nearly equal size, none takes all labels of a class, and ``propagate`` always sees every
    class. A class with a single label is never held back, since nothing could name it: the answer is silent on it.

    Parameters
    ----------
    propagate : from labels (N,), int64 with -1 for unlabelled, to Posteriors of all N examples; called for each fold
        that has a label in it, for example ``lambda known: class_posteriors(neighbors, known)``
    labels : (N,) integers, -1 = unlabelled, of at least two classes, one of them with two labels or more
    folds : at least 2; more folds leave more labels in each propagation and take longer
    seed : of the shuffle

    Returns
    -------
    Judged, on the CPU, of all labelled examples whose class has two labels or more; the class of the largest posterior
    is the one that was named
    """
    labels = check_labels(labels, len(labels))
    if not isinstance(folds, int | np.integer) or folds < 2:
        raise InputError(f"folds must be a whole number of at least 2, got {folds}. Use 5 unless it takes too long.")
    fold = _deal(labels.cpu(), folds, seed).to(labels.device)
    held = [(fold == number).nonzero().flatten() for number in range(int(fold.max()) + 1)]
    parts = [judge(propagate(labels.index_fill(0, rows, -1)), labels, rows) for rows in held]
    order = torch.cat(held).argsort().cpu()
    return Judged(*(torch.cat(column)[order] for column in zip(*parts, strict=True)))


def trust_report(judged: Judged, confidence_all: Any) -> Trust:
    """Estimate the accuracy of pseudo-labels, over all and by confidence.

    Parameters
    ----------
    judged : what became of held-back labels, from ``hold_back``
    confidence_all : (N,) confidence of each unlabelled example, propagated from all labels

    Returns
    -------
    Trust; its docstring says what the estimate assumes
    """
    right, confidence, probability = _check_judged(judged)
    everyone = _check_shares(confidence_all, "confidence_all")
    levels = tuple(_level(level, right[confidence >= level], everyone >= level) for level in LEVELS)
    return Trust(
        accuracy=_mean(right),
        low=levels[0].low,
        high=levels[0].high,
        judged=len(right),
        levels=levels,
        calibration_error=_calibration_error(right, probability),
    )


def wilson_interval(right: int, total: int) -> tuple[float, float]:
    """Bounds of the chance of success after ``right`` of ``total`` independent trials, at 95 %, by Wilson (1927).

    With k of n right and z = 1.96, they are the p at which |k / n - p| = z sqrt(p (1 - p) / n). Of n = 0 nothing is
    known: 0 and 1.
    """
    if not 0 <= right <= total:
        raise InputError(f"right must be between 0 and total ({total}), got {right}. Pass counts, not shares.")
    z = NormalDist().inv_cdf(0.975)
    middle = right + z * z / 2
    reach = z * math.sqrt(right * (total - right) / max(total, 1) + z * z / 4)
    low = (middle - reach) / (total + z * z) if right > 0 else 0.0
    high = (middle + reach) / (total + z * z) if right < total else 1.0
    return low, high


def _deal(labels: Tensor, folds: int, seed: int) -> Tensor:
    """Fold (N,) in which each label is held back, -1 for never."""
    known = (labels >= 0).nonzero().flatten()
    known = known[torch.randperm(len(known), generator=torch.Generator().manual_seed(seed))]
    known = known[labels[known].argsort(stable=True)]
    counts = labels[known].unique_consecutive(return_counts=True)[1]
    if len(counts) < 2:
        raise InputError(f"labels must be of at least 2 classes to tell them apart, got {len(counts)}. Label another.")
    known = known[counts.repeat_interleave(counts) > 1]
    if len(known) == 0:
        raise InputError(
            f"labels have a single example of each of their {len(counts)} classes, so none can be held back: nothing "
            "would be left to name it. Label a second example of some class."
        )
    return torch.full_like(labels, -1).index_put_((known,), torch.arange(len(known)) % folds)


def judge(found: Posteriors, labels: Tensor, rows: Tensor) -> Judged:
    """What ``found``, which was propagated without them, says of the labels of the held-back ``rows``."""
    if not isinstance(found, Posteriors):
        raise InputError(f"propagate must return Posteriors(classes, shares, confidence), got {type(found).__name__}.")
    classes, shares, confidence = (as_tensor(part, "what propagate returns").to(labels.device) for part in found)
    if classes.ndim != 1 or shares.shape != (len(labels), len(classes)) or confidence.shape != labels.shape:
        raise InputError(
            f"propagate must return classes (C,), shares ({len(labels)}, C) and confidence ({len(labels)},), got "
            f"{tuple(classes.shape)}, {tuple(shares.shape)} and {tuple(confidence.shape)}. "
            "Return a row for each example, labelled or not."
        )
    check_finite(shares, "shares that propagate returns")
    probability, column = shares[rows].max(1)
    return Judged(
        (classes[column] == labels[rows]).cpu(),
        _check_shares(confidence[rows], "confidence that propagate returns"),
        _check_shares(probability, "shares that propagate returns"),
    )


def _check_judged(judged: Judged) -> Judged:
    right = as_tensor(judged.right, "judged.right")
    if right.dtype != torch.bool or right.ndim != 1:
        raise InputError(
            f"judged.right must be true or false for each held-back example, shape (n,), got {right.dtype} of shape "
            f"{tuple(right.shape)}. Use hold_back(propagate, labels)."
        )
    confidence = _check_shares(judged.confidence, "judged.confidence")
    probability = _check_shares(judged.probability, "judged.probability")
    if not len(right) == len(confidence) == len(probability):
        raise InputError(
            "judged must hold right, confidence and probability of the same examples, got "
            f"{len(right)}, {len(confidence)} and {len(probability)}. Use hold_back(propagate, labels)."
        )
    return Judged(right.cpu(), confidence, probability)


def _check_shares(values: Any, name: str) -> Tensor:
    """A float64 (n,) tensor on the CPU with n > 0 values in [0, 1]."""
    tensor = as_tensor(values, name).double().cpu()
    if tensor.ndim != 1 or len(tensor) == 0:
        raise InputError(
            f"{name} must have one entry for each of one or more examples, got shape {tuple(tensor.shape)}."
        )
    check_finite(tensor, name)
    low, high = float(tensor.min()), float(tensor.max())
    if low < -ROUNDING or high > 1 + ROUNDING:
        raise InputError(f"{name} must lie between 0 and 1, got values from {low:.6g} to {high:.6g}. Normalise them.")
    return tensor.clamp(0.0, 1.0)


def _level(level: float, right: Tensor, covered: Tensor) -> TrustLevel:
    """The row of ``level`` from the held-back examples above it (m,) and the mask (N,) of unlabelled ones above it."""
    count, total = int(right.sum()), len(right)
    accuracy = count / total if total else None
    return TrustLevel(level, _mean(covered), total, count, accuracy, *wilson_interval(count, total))


def _calibration_error(right: Tensor, probability: Tensor) -> float:
    """sum_b n_b / n |accuracy_b - mean probability_b| over bins b of probability.

    The expected calibration error of M. Pakdaman Naeini, G. F. Cooper, M. Hauskrecht, "Obtaining well calibrated
    probabilities using Bayesian binning", AAAI 2015.
    """
    bins = (probability * BINS).long().clamp_max(BINS - 1)
    gaps = torch.zeros(BINS, dtype=torch.float64).index_add_(0, bins, right.double() - probability)
    return float(gaps.abs().sum()) / len(right)


def _mean(flags: Tensor) -> float:
    return int(flags.sum()) / len(flags)


def _were(row: TrustLevel) -> str:
    return "was" if row.right == 1 else "were"


def _in_percent(row: TrustLevel) -> str:
    """Accuracy and interval, such as (94 %, 95 % interval 84 to 98 %)."""
    accuracy = _percent(row.right / row.judged)
    return f"({accuracy} %, 95 % interval {_percent(row.low)} to {_percent(row.high)} %)"


def _percent(share: float) -> str:
    """A share as a whole percentage that is 0 or 100 only where the share is 0 or 1."""
    if 0 < share <= 0.005:
        return "less than 1"
    return "more than 99" if 0.995 <= share < 1 else f"{100 * share:.0f}"
