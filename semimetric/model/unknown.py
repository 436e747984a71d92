"""How far an example is from all known classes: "none of these".

The score uses the inputs of the encoder (frozen features, columns or pixels), not the embedding: training pulls every
example to a known class, whether it is of one or not. With the means m_c of the known classes, the within-class
covariance S, shrunk towards a multiple of the identity, and x' = S^-1/2 (x - mean of all), it combines

    min_c ||x - m_c||    and    - max_c cos(x', m_c')

as the sum of both in units of their spread. A logistic regression calibrates the sum on held-out labelled examples:
each once with its class among the known ones, and once with that class left out. Means and covariance are of all
training examples, by their known or predicted class, weighted by the confidence.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import NamedTuple

import torch
from torch import Tensor

from semimetric.core.checks import check_not_negative
from semimetric.core.errors import InputError
from semimetric.data.stored import Inputs
from semimetric.graph import Posteriors

RISK = 0.05
"""Share of the examples of known classes that may be taken for ones of none, unless the user says otherwise."""

SMALLEST_GROUP = 5
"""Examples, at least, that are reported as one more class."""

FOLDS = 5
MOST_ROWS = 600
"""Examples, at most, from which the covariance is computed."""

MOST_JUDGED = 1000
"""Examples of a fold, at most, that are judged, labelled ones first."""

MOST_NUMBERS = 1 << 26
"""Numbers in the examples, at most, from which the score is fitted: half a gibibyte."""

MOST_GROUPED = 2000
"""Examples, at most, among which groups are looked for: the time grows with the square."""

AT_A_TIME = 1024  # examples that are scored at a time
MOST_DIRECTIONS = 256
SHRINKAGE = 0.1
LEAST_WEIGHT = 1e-3
FEWEST = 20
"""Held-out labelled examples, at least; with fewer the pseudo-labelled ones count, too, or there is no score."""


class Shape(NamedTuple):
    """The whitening: x' = (x - centre) - ((x - centre) U) diag(shrunk) U^T, up to a factor."""

    centre: Tensor
    basis: Tensor
    shrunk: Tensor

    def whiten(self, rows: Tensor) -> Tensor:
        """Unit rows (n, d) in which directions that vary within classes count less."""
        moved = rows - self.centre
        moved = moved - ((moved @ self.basis) * self.shrunk) @ self.basis.T
        unit: Tensor = moved / moved.norm(dim=1, keepdim=True).clamp_min(torch.finfo(moved.dtype).tiny)
        return unit


@dataclass(frozen=True)
class Unknown:
    """The score of being of no known class.

    Attributes
    ----------
    means : (C, d) of the known classes
    centre, basis, shrunk : (d,), (d, r) and (r,), the whitening
    offsets, factors : (2,) each; the logit is the sum of (distance - offset) * factor, plus ``bias`` ()
    held_out : (n,) logits of held-out examples of known classes, in ascending order
    """

    means: Tensor
    centre: Tensor
    basis: Tensor
    shrunk: Tensor
    offsets: Tensor
    factors: Tensor
    bias: Tensor
    held_out: Tensor

    def tensors(self) -> dict[str, Tensor]:
        """All parts, by name."""
        return {part.name: getattr(self, part.name) for part in fields(self)}

    def scores(self, rows: Tensor) -> Tensor:
        """Probability (n,) of being of no known class, if half of all examples were, of scaled inputs (n, d)."""
        return self._logits(rows).sigmoid()

    def threshold(self, risk: float) -> float:
        """The score above which at most a share ``risk`` of new examples of known classes lie.

        It is the conformal quantile of n held-out ones: that of the level (1 - risk) (n + 1) / n.
        """
        check_not_negative(risk, "risk")
        if risk >= 1:
            raise InputError(f"risk must be below 1, got {risk}. It is the share of names that may be lost wrongly.")
        if risk == 0:
            return float("inf")
        level = (1.0 - risk) * (len(self.held_out) + 1) / len(self.held_out)
        return float(self.held_out.quantile(min(1.0, level), interpolation="higher").sigmoid())

    def groups(self, rows: Tensor) -> list[Tensor]:
        """Clusters of examples (n, d) of no known class, the largest first, each as numbers of its rows."""
        from sklearn.cluster import HDBSCAN

        if len(rows) < 2 * SMALLEST_GROUP:
            return []
        clusters = HDBSCAN(min_cluster_size=SMALLEST_GROUP, copy=True).fit_predict(self.whiten(rows).numpy())
        found = torch.from_numpy(clusters)
        groups = [
            (found == number).nonzero().flatten() for number in range(int(found.max()) + 1)
        ]  # -1 is of no cluster
        return sorted(groups, key=len, reverse=True)

    def looks_new(self, inputs: Inputs) -> Tensor:
        """Rows of those scaled inputs (n, ...) that look like no known class, at most the first ``MOST_GROUPED``."""
        scores = torch.cat([self.scores(part.flatten(1).float().cpu()) for part in inputs.split(AT_A_TIME)])
        beyond = (scores > self.threshold(RISK)).nonzero().flatten()
        first = scores[beyond].argsort(descending=True, stable=True)[:MOST_GROUPED]
        return beyond[first].sort().values

    @property
    def _shape(self) -> Shape:
        return Shape(self.centre.double(), self.basis.double(), self.shrunk)

    def whiten(self, rows: Tensor) -> Tensor:
        """Unit rows (n, d) in which directions that vary within the known classes count less."""
        return self._shape.whiten(rows.double())

    def _logits(self, rows: Tensor) -> Tensor:
        parts = [_distances(part.double(), self.means.double(), self._shape) for part in rows.split(AT_A_TIME)]
        return (torch.cat(parts) - self.offsets) @ self.factors + self.bias


class Group(NamedTuple):
    """Rows (n, d) with the number of their class (n,), their weight (n,), and whether it is a label (n,)."""

    rows: Tensor
    classes: Tensor
    weights: Tensor
    labelled: Tensor

    def of(self, chosen: Tensor) -> Group:
        """Some of them."""
        return Group(*(part[chosen] for part in self))


def judged_rows(labels: Tensor, width: int) -> Tensor:
    """Examples from which the score is fitted: all, or of very many the labelled ones and some of the others.

    Of too many labelled ones, every class has as many as the others, as far as it has them: none may be missing.
    """
    most = max(FEWEST, MOST_NUMBERS // width)
    if len(labels) <= most:
        return torch.arange(len(labels))
    labelled, others = (labels >= 0).nonzero().flatten(), (labels < 0).nonzero().flatten()
    labelled = labelled[_turns(labels[labelled]).argsort(stable=True)[:most]]
    places = torch.arange(min(most - len(labelled), len(others))) * len(others) // max(1, most - len(labelled))
    return torch.cat([labelled, others[places]]).sort().values


def _turns(classes: Tensor) -> Tensor:
    """How many of the same class come before each one (n,)."""
    order = classes.argsort(stable=True)
    counts = classes.unique(return_counts=True)[1]
    before = torch.arange(len(order)) - (counts.cumsum(0) - counts).repeat_interleave(counts)
    return torch.empty_like(order).index_copy_(0, order, before)


def fit_unknown(inputs: Tensor, found: Posteriors, labels: Tensor, seed: int = 0) -> Unknown | None:
    """The score for training examples; None if there are too few classes or examples to judge it.

    Parameters
    ----------
    inputs : (N, d) scaled inputs
    found : posteriors of the N examples
    labels : (N,), -1 where unlabelled
    """
    if len(found.classes) < 2:
        return None
    weights = found.confidence.double().clamp_min(LEAST_WEIGHT)
    group = Group(inputs.double(), found.shares.argmax(1), weights, labels >= 0)
    judged = [_judge(group.of(held), group.of(rest)) for held, rest in _folds(group.classes, seed)]
    known, others, labelled, labelled_others = (torch.cat(parts) for parts in zip(*judged, strict=True))
    if int(labelled.sum()) >= FEWEST:
        known, others = known[labelled], others[labelled_others]
    if min(len(known), len(others)) < FEWEST:
        return None
    return _combined(*_shape_and_means(group), known, others)


def _folds(classes: Tensor, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Held-out rows and the others, fold by fold; the rows of each class are dealt to the folds in turn."""
    order = torch.randperm(len(classes), generator=torch.Generator().manual_seed(seed))
    order = order[classes[order].argsort(stable=True)]
    fold = torch.arange(len(order)) % FOLDS
    return ((order[fold == number], order[fold != number]) for number in range(min(FOLDS, len(order))))


def _judge(held: Group, rest: Group) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Distances (n, 2) of held-out rows with their class among the others, and with it left out; which are labelled."""
    held = held.of((~held.labelled).sort(stable=True).indices[:MOST_JUDGED])
    shape, means = _shape_and_means(rest)
    own = held.classes[:, None] == rest.classes.unique()
    there, several = own.any(1), ~own.all(1)
    known = _distances(held.rows[there], means, shape)
    return (
        known,
        _distances(held.rows[several], means, shape, own[several]),
        held.labelled[there],
        held.labelled[several],
    )


def _shape_and_means(group: Group) -> tuple[Shape, Tensor]:
    """The whitening and the means (C, d), both of weighted rows."""
    rows, weights = group.rows, group.weights
    numbers = group.classes.unique(return_inverse=True)[1]
    sums = torch.zeros(int(numbers.max()) + 1, dtype=rows.dtype).index_add_(0, numbers, weights)
    means = torch.zeros(len(sums), rows.shape[1], dtype=rows.dtype).index_add_(0, numbers, rows * weights[:, None])
    means /= sums[:, None]
    some = torch.arange(0, len(rows), -(-len(rows) // MOST_ROWS))
    residuals = (rows[some] - means[numbers[some]]) * weights[some].sqrt()[:, None]
    total = weights[some].sum()
    values, vectors = torch.linalg.eigh(residuals @ residuals.T / total)
    even = SHRINKAGE * values.sum() / rows.shape[1]
    kept = values > torch.finfo(values.dtype).eps * len(values) * values[-1].clamp_min(torch.finfo(values.dtype).tiny)
    kept[:-MOST_DIRECTIONS] = False
    values = values[kept]
    basis = residuals.T @ vectors[:, kept] / (values * total).sqrt()
    shrunk = 1.0 - (even / ((1.0 - SHRINKAGE) * values + even)).sqrt()
    return Shape(rows.mean(0), basis, shrunk), means


def _distances(rows: Tensor, means: Tensor, shape: Shape, left_out: Tensor | None = None) -> Tensor:
    """Distance to the nearest mean and negative largest cosine (n, 2); ``left_out`` (n, C) marks means not to use."""
    plain, cosines = torch.cdist(rows, means), shape.whiten(rows) @ shape.whiten(means).T
    if left_out is not None:
        plain, cosines = plain.masked_fill(left_out, torch.inf), cosines.masked_fill(left_out, -torch.inf)
    return torch.stack([plain.amin(1), -cosines.amax(1)], dim=1)


def _combined(shape: Shape, means: Tensor, known: Tensor, others: Tensor) -> Unknown | None:
    """The sum of both distances in units of their spread, as a logit: known against left-out classes, half of each."""
    from sklearn.linear_model import LogisticRegression

    both = torch.cat([known, others])
    offsets, spread = both.mean(0), both.std(0)
    if not bool((spread > 0).all()):
        return None
    sums = ((both - offsets) / spread).sum(1, keepdim=True).numpy()
    truth = torch.cat([torch.zeros(len(known)), torch.ones(len(others))]).numpy()
    model = LogisticRegression(class_weight="balanced").fit(sums, truth)
    factors = float(model.coef_[0, 0]) / spread
    bias = torch.tensor(float(model.intercept_[0]), dtype=torch.float64)
    held_out = ((known - offsets) @ factors + bias).sort().values
    centre, basis, shrunk = shape
    return Unknown(means.float(), centre.float(), basis.float(), shrunk, offsets, factors, bias, held_out)
