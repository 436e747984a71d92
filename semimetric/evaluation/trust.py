"""Estimated accuracy and calibration of pseudo-labels, from held-out labels.

Some labels are held out, the rest are propagated, and the predictions are compared with the held-out labels. The
limits:

- It is slightly pessimistic, because each held-out label is predicted from fewer labels than there are.
- It holds for the unlabelled examples only if the labelled ones were sampled at random. Labels of easy examples make it
  too high. A fixed number of labels per class gives rare classes too much weight. Classes without a label are ignored.
- Labels are few, so it comes with a 95 % Wilson interval. That assumes independent predictions, so the interval covers
  the true accuracy somewhat less often than in 95 of 100 cases.

References
----------
Wilson: Probable inference, the law of succession, and statistical inference. J. Am. Stat. Assoc. 22, 1927.
Pakdaman Naeini, Cooper, Hauskrecht: Obtaining well calibrated probabilities using Bayesian binning. AAAI 2015.
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

LEVELS = (0.0, 0.5, 0.8, 0.9, 0.95, 0.99)  # confidence thresholds of the rows of a report
SUMMARY_LEVEL = 0.9  # highest threshold that the summary reports
MIN_LABELS = 10  # held-out labels above a threshold that the summary needs to report it
BINS = 10  # bins of equal width for the calibration error
ROUNDING = 1e-6  # tolerance for probabilities outside [0, 1] by float32 rounding


class Judged(NamedTuple):
    """Predictions for n held-out labels, in ascending order of their rows: the input of ``trust_report``.

    Attributes
    ----------
    right : (n,) bool tensor
        Whether the predicted class is the held-out label.
    confidence : (n,) float64 tensor
        Confidence of the prediction, in [0, 1].
    probability : (n,) float64 tensor
        Posterior of the predicted class, in [0, 1].
    """

    right: Tensor
    confidence: Tensor
    probability: Tensor


@dataclass(frozen=True)
class TrustLevel:
    """Estimate for examples with confidence ``level`` or more.

    ``coverage`` is their share of the unlabelled examples. Of ``judged`` held-out labels among them, ``right`` were
    predicted correctly: the ``accuracy``, None without labels, with its 95 % interval [``low``, ``high``].
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
    """Accuracy of pseudo-labels, estimated from held-out labels, overall and by confidence.

    The estimate is slightly pessimistic and assumes that labelled examples were sampled at random.

    Attributes
    ----------
    accuracy, low, high : float
        Share of held-out labels predicted correctly, and its 95 % interval.
    judged : int
        Number of held-out labels.
    levels : tuple of TrustLevel
        The same for examples above each of several confidence thresholds.
    calibration_error : float
        Mean gap between probability and accuracy. With n labels in a bin, chance alone gives a mean gap of up to
        0.4 / sqrt(n), so a few dozen labels cannot show a small error.
    suggested : int
        Number of labels that were not held out because they were suggested, and so are no random sample.
    """

    accuracy: float
    low: float
    high: float
    judged: int
    levels: tuple[TrustLevel, ...]
    calibration_error: float
    suggested: int = 0

    def sentence(self) -> str:
        """Summary: all held-out labels, then those of confidence 0.9, or the next threshold that 10 labels reach."""
        everyone = self.levels[0]
        count = f"{everyone.right} of {self.judged} held-out labels {'was' if everyone.right == 1 else 'were'}"
        told = f"{count} predicted correctly {_in_percent(everyone)}. {self._confident_sentence()}"
        return f"{told} {self._suggested_sentence()}" if self.suggested else told

    def _confident_sentence(self) -> str:
        enough = [row for row in self.levels if 0 < row.level <= SUMMARY_LEVEL and row.judged >= MIN_LABELS]
        if not enough:
            row = self.levels[1]
            reach = f"with confidence {row.level:g} or more ({row.judged})"
            return f"Too few held-out labels {reach} to calibrate the confidence."
        row = enough[-1]
        covered = f"At confidence {row.level:g} or more ({_percent(row.coverage)} % of the unlabelled examples)"
        return f"{covered}, {row.right} of {row.judged} were correct {_in_percent(row)}."

    def _suggested_sentence(self) -> str:
        were = "label was" if self.suggested == 1 else "labels were"
        told = f"{self.suggested} suggested {were} not held out: they are no random sample"
        few = self.judged < MIN_LABELS
        return f"{told}. Too few others remain: label some examples at random." if few else f"{told}."

    def as_dict(self) -> dict[str, Any]:
        """All values in a JSON-serialisable dictionary."""
        return asdict(self) | {"levels": [asdict(row) for row in self.levels]}


def hold_back(propagate: Callable[[Tensor], Posteriors], labels: Any, folds: int = 5, seed: int = 0) -> Judged:
    """Cross-validated predictions for the labels: hold out one fold at a time and propagate the others.

    The labels of each class are shuffled and dealt to the folds in turn. Folds have nearly equal size and ``propagate``
    always sees every class. A class with a single label is never held out.

    Parameters
    ----------
    propagate : callable
        Maps labels (N,), int64 with -1 = unlabelled, to the Posteriors of all N examples, for example
        ``lambda known: class_posteriors(neighbors, known)``. Called once per fold.
    labels : (N,) int array
        Class numbers, -1 = unlabelled, of at least two classes; one class must have two labels or more.
    folds : int
        At least 2. More folds leave more labels for each propagation and take longer.
    seed : int
        Seed of the shuffle.

    Returns
    -------
    Judged
        Predictions for all labels of classes with two labels or more, on the CPU.
    """
    labels = check_labels(labels, len(labels))
    if not isinstance(folds, int | np.integer) or folds < 2:
        raise InputError(f"folds must be a whole number of at least 2, got {folds}. Use 5 unless it takes too long.")
    fold = _assign_folds(labels.cpu(), folds, seed).to(labels.device)
    held = [(fold == number).nonzero().flatten() for number in range(int(fold.max()) + 1)]
    parts = [judge(propagate(labels.index_fill(0, rows, -1)), labels, rows) for rows in held]
    order = torch.cat(held).argsort().cpu()
    return Judged(*(torch.cat(column)[order] for column in zip(*parts, strict=True)))


def trust_report(judged: Judged, confidence_all: Any, suggested: int = 0) -> Trust:
    """Estimate the accuracy of pseudo-labels, overall and by confidence.

    Parameters
    ----------
    judged : Judged
        Predictions for held-out labels, from ``hold_back``.
    confidence_all : (N,) array
        Confidence of each unlabelled example, propagated from all labels.
    suggested : int
        Number of labels that were not held out because they were suggested.

    Returns
    -------
    Trust
        The estimate; see there for its assumptions.
    """
    right, confidence, probability = _check_judged(judged)
    everyone = _check_shares(confidence_all, "confidence_all")
    levels = tuple(_level(level, right[confidence >= level], everyone >= level) for level in LEVELS)
    low, high = levels[0].low, levels[0].high
    return Trust(_mean(right), low, high, len(right), levels, calibration_error(right, probability), suggested)


def wilson_interval(right: int, total: int) -> tuple[float, float]:
    """95 % Wilson interval of the success probability, given ``right`` of ``total`` independent trials.

    With k of n right and z = 1.96, they are the p at which |k / n - p| = z sqrt(p (1 - p) / n); 0 and 1 for n = 0.
    """
    if not 0 <= right <= total:
        raise InputError(f"right must be between 0 and total ({total}), got {right}. Pass counts, not shares.")
    z = NormalDist().inv_cdf(0.975)
    middle = right + z * z / 2
    reach = z * math.sqrt(right * (total - right) / max(total, 1) + z * z / 4)
    low = (middle - reach) / (total + z * z) if right > 0 else 0.0
    high = (middle + reach) / (total + z * z) if right < total else 1.0
    return low, high


def _assign_folds(labels: Tensor, folds: int, seed: int) -> Tensor:
    """Fold (N,) in which each label is held out, -1 for never."""
    known = (labels >= 0).nonzero().flatten()
    known = known[torch.randperm(len(known), generator=torch.Generator().manual_seed(seed))]
    known = known[labels[known].argsort(stable=True)]
    counts = labels[known].unique_consecutive(return_counts=True)[1]
    if len(counts) < 2:
        raise InputError(f"labels must be of at least 2 classes, got {len(counts)}. Label an example of another class.")
    known = known[counts.repeat_interleave(counts) > 1]
    if len(known) == 0:
        raise InputError(
            f"labels have a single example of each of their {len(counts)} classes, so none can be held out. "
            "Label a second example of some class."
        )
    return torch.full_like(labels, -1).index_put_((known,), torch.arange(len(known)) % folds)


def judge(found: Posteriors, labels: Tensor, rows: Tensor) -> Judged:
    """Predictions ``found``, propagated without the labels of ``rows``, compared with those labels."""
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
            f"judged.right must be true or false for each held-out label, shape (n,), got {right.dtype} of shape "
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
        shape = tuple(tensor.shape)
        raise InputError(f"{name} must have one entry for each of one or more examples, got shape {shape}.")
    check_finite(tensor, name)
    low, high = float(tensor.min()), float(tensor.max())
    if low < -ROUNDING or high > 1 + ROUNDING:
        raise InputError(f"{name} must lie between 0 and 1, got values from {low:.6g} to {high:.6g}. Normalise them.")
    return tensor.clamp(0.0, 1.0)


def _level(level: float, right: Tensor, covered: Tensor) -> TrustLevel:
    """The estimate for ``level``, from the held-out labels (m,) and unlabelled examples (N,) above it."""
    count, total = int(right.sum()), len(right)
    accuracy = count / total if total else None
    return TrustLevel(level, _mean(covered), total, count, accuracy, *wilson_interval(count, total))


def calibration_error(right: Tensor, probability: Tensor) -> float:
    """Expected calibration error of n predictions: which are ``right`` (n,), and their ``probability`` (n,).

    It is sum_b n_b / n |accuracy_b - mean probability_b| over ten bins b of probability.
    """
    bins = (probability * BINS).long().clamp_max(BINS - 1)
    gaps = torch.zeros(BINS, dtype=torch.float64).index_add_(0, bins, right.double() - probability)
    return float(gaps.abs().sum()) / len(right)


def _mean(flags: Tensor) -> float:
    return int(flags.sum()) / len(flags)


def _in_percent(row: TrustLevel) -> str:
    """Accuracy and interval, such as (94 %, 95 % interval 84 to 98 %)."""
    accuracy = _percent(row.right / row.judged)
    return f"({accuracy} %, 95 % interval {_percent(row.low)} to {_percent(row.high)} %)"


def _percent(share: float) -> str:
    """A share as a whole percentage; it is 0 or 100 only if the share is exactly 0 or 1."""
    if 0 < share <= 0.005:
        return "less than 1"
    return "more than 99" if 0.995 <= share < 1 else f"{100 * share:.0f}"
