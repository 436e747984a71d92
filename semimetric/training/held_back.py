"""Labels that training does not see at first, so that they can say how far to trust the labels it gives to others.

A network knows by heart the labels it is trained on, and names them rightly whatever it does elsewhere; only labels
that neither the graph nor the network has seen can judge. They are few, so they are not wasted: once they have judged,
half-way through, they join the rest. The judgement is of that moment and of fewer labels, a little pessimistic.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from semimetric.evaluation import judge, trust_report
from semimetric.graph import Posteriors


class HeldBack:
    """The rows of the labels that are held back until epoch ``until`` is over; they judge when the next one begins."""

    def __init__(self, labels: Tensor, share: float, epochs: int, generator: torch.Generator) -> None:
        self.rows = _drawn(labels.cpu(), share, generator).to(labels.device)
        self.until = epochs // 2
        self._labels = labels

    def labels(self, epoch: int) -> Tensor:
        """The labels (N,) that training may see in ``epoch``, counted from 1."""
        return self.hidden() if epoch <= self.until else self._labels

    def hidden(self) -> Tensor:
        """The labels (N,) without those held back."""
        return self._labels.index_fill(0, self.rows, -1)

    def judge(self, found: Posteriors, rows: Tensor) -> dict[str, Any]:
        """What the held-back labels say of the posteriors ``found`` of the examples ``rows``, for people and JSON."""
        labels = self._labels[rows]
        held = torch.isin(rows, self.rows)
        judged = judge(found, labels, held.nonzero().flatten())
        trust = trust_report(judged, found.confidence[held | (labels < 0)])
        return trust.as_dict() | {"sentence": trust.sentence()}


def fewest_labels(share: float) -> int:
    """Labels that a class needs so that one of them is held back."""
    return max(2, math.floor(0.5 / share) + 1)


def _drawn(labels: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """Rows of ``share`` of each class's labels, rounded, at random; one label of a class always stays."""
    drawn = []
    for name in torch.unique(labels[labels >= 0]):
        rows = (labels == name).nonzero().flatten()
        count = min(round(share * len(rows)), len(rows) - 1)
        drawn.append(rows[torch.randperm(len(rows), generator=generator)[:count]])
    return torch.cat(drawn).sort().values
