"""Labels held out in the first half of training, to estimate the accuracy of pseudo-labels.

A network memorises its training labels, so only labels that neither graph nor network has seen give a fair estimate.
Labels are few, so after the estimate, half-way through, training uses them too. The estimate is slightly pessimistic.
Labels that were suggested are never held out: they are harder than others, and would make the estimate too low.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from semimetric.core.errors import InputError
from semimetric.evaluation import judge, trust_report
from semimetric.graph import Posteriors
from semimetric.methods import Method, PredictsClasses
from semimetric.training.data import TrainingData
from semimetric.training.settings import TrainingSettings


class HeldBack:
    """Held-out labels, of which none was suggested. ``rows`` are hidden up to and including epoch ``until``."""

    def __init__(
        self, labels: Tensor, share: float, epochs: int, generator: torch.Generator, suggested: Tensor | None = None
    ) -> None:
        suggested = torch.zeros_like(labels, dtype=torch.bool) if suggested is None else suggested & (labels >= 0)
        self.rows = _draw_rows(labels.cpu(), suggested.cpu(), share, generator).to(labels.device)
        self.suggested = int(suggested.sum())
        self.until = epochs // 2
        self._labels = labels

    def labels(self, epoch: int) -> Tensor:
        """The labels (N,) that training may see in ``epoch``, counted from 1."""
        return self.hidden() if epoch <= self.until else self._labels

    def hidden(self) -> Tensor:
        """The labels (N,) without those held out."""
        return self._labels.index_fill(0, self.rows, -1)

    def judge(self, found: Posteriors, rows: Tensor) -> dict[str, Any]:
        """Trust report, ready for JSON, of the posteriors ``found`` of the examples ``rows``."""
        labels, held = self._labels[rows], torch.isin(rows, self.rows)
        judged = judge(found, labels, held.nonzero().flatten())
        trust = trust_report(judged, found.confidence[held | (labels < 0)], self.suggested)
        return trust.as_dict() | {"sentence": trust.sentence()}

    def accuracy(self, found: Posteriors, rows: Tensor) -> float:
        """Share of the held-out labels that the posteriors ``found`` of the examples ``rows`` predict."""
        held = torch.isin(rows, self.rows).nonzero().flatten()
        return float(judge(found, self._labels[rows], held).right.double().mean())


def hold_back(
    method: Method[Any], settings: TrainingSettings, data: TrainingData, generator: torch.Generator
) -> HeldBack | None:
    """The held-out labels, if requested and possible."""
    if not settings.hold_back:
        return None
    if not isinstance(method, PredictsClasses):
        raise InputError(f"hold_back judges pseudo-labels and method {method.name!r} gives none. Leave hold_back at 0.")
    held = HeldBack(data.labels, settings.hold_back, settings.epochs, generator, data.suggested)
    return held if len(held.rows) and held.until else None


def fewest_labels(share: float) -> int:
    """Labels that a class needs so that one of them is held out."""
    return max(2, math.floor(0.5 / share) + 1)


def _draw_rows(labels: Tensor, suggested: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """Random rows of ``share`` of each class's other labels, rounded; at least one label of a class is left."""
    drawn = []
    for name in torch.unique(labels[labels >= 0]):
        own = labels == name
        rows = (own & ~suggested).nonzero().flatten()
        count = min(round(share * len(rows)), int(own.sum()) - 1)
        drawn.append(rows[torch.randperm(len(rows), generator=generator)[:count]])
    return torch.cat(drawn).sort().values


def why_none_is_held_back(share: float, suggested: Tensor | None) -> str:
    """A sentence for a training that was to hold labels out and could not."""
    others = suggested is not None and bool(suggested.any())
    return (
        "Pseudo-label accuracy cannot be estimated: no labels could be held out. This needs at least 2 epochs and a "
        f"class with at least {fewest_labels(share)} labels"
        f"{' that were not suggested: label some at random' if others else ''}."
    )
