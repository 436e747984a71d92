"""Pseudo-labels of a working set, and how two opinions on the class of an example become one."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

SMALLEST_SHARE = 1e-6  # probability in the geometric mean, so that neither graph nor head rules out a class
LABELLED_SHARE = 1 / 8  # of each batch, drawn from the labelled examples


@dataclass(frozen=True)
class Agreement:
    """Pseudo-labels of n examples."""

    nodes: Tensor
    shares: Tensor  # (n, C) posteriors of ``classes``; one-hot for labelled examples
    graph: Tensor  # (n, C) posteriors of the graph alone
    veto: Tensor  # (n,) factor of the weight where the graph is less confident than is typical
    confidence: Tensor  # (n,) in [0, 1]
    weights: Tensor  # (n,) in the loss
    known: Tensor  # (n,) whether the example is labelled
    neighbours: Tensor  # (n, q) rows of the working set: the example itself, then its nearest neighbours
    outputs: Tensor  # (n, l) points of the examples, or (2n, l) of their views by the averaged network; l = 0: unused
    classes: Tensor  # (C,)

    def __len__(self) -> int:
        return len(self.nodes)

    @property
    def targets(self) -> Tensor:
        """(n,) column of the most likely class."""
        return self.shares.argmax(1)

    def minibatches(self, size: int, generator: torch.Generator) -> Iterator[Agreement]:
        """``n // size`` batches: an eighth is drawn from the labelled examples, the rest from all in random order.

        Each of the rest brings its neighbours along, so with q of them only one in q is drawn.
        """
        labelled = self.known.nonzero().flatten().cpu()
        first = drawn_labelled(size)
        batches, width = len(self) // size, self.neighbours.shape[1]
        queries = -(-(size - first) // width)
        drawn = labelled[torch.randint(len(labelled), (batches, first), generator=generator)]
        order = torch.randperm(len(self), generator=generator)[: batches * queries].to(self.known.device)
        near = self.neighbours[order].reshape(batches, queries * width)[:, : size - first]
        for at in torch.cat([drawn.to(near.device), near], dim=1):
            yield self._at(at)

    def _at(self, rows: Tensor) -> Agreement:
        names = (field.name for field in dataclasses.fields(self) if field.name != "classes")
        return dataclasses.replace(self, **{name: getattr(self, name)[rows] for name in names})

    def renamed(self, shares: Tensor, weights: Tensor) -> Agreement:
        """The same examples with other pseudo-labels; labelled ones keep theirs, and their weight."""
        return dataclasses.replace(
            self,
            shares=torch.where(self.known[:, None], self.shares, shares),
            weights=torch.where(self.known, self.weights, weights),
        )

    def quality(self, classes: Tensor) -> dict[str, float]:
        """Accuracy of the pseudo-labels of unlabelled examples, plain and weighted by confidence."""
        if bool(self.known.all()):
            return {}
        right = (self.classes[self.targets] == classes[self.nodes])[~self.known].double()
        weights = self.confidence[~self.known].double()
        weighted = float((right * weights).sum() / weights.sum().clamp_min(1e-12))
        return {"right_pseudo_labels": float(right.mean()), "right_by_confidence": weighted}


def drawn_labelled(size: int) -> int:
    """How many examples of a batch, its first ones, are drawn from the labelled."""
    return max(int(LABELLED_SHARE * size), 1 if size > 1 else 0)


def certainty(shares: Tensor) -> Tensor:
    """1 - H / log C with the entropy H of rows of probabilities (N, C): 1 for a one-hot row, 0 for a uniform one."""
    sure: Tensor = 1.0 - torch.special.entr(shares).sum(1) / math.log(shares.shape[1])
    return sure.clamp(0.0, 1.0)


def geometric_mean(first: Tensor, second: Tensor, share: float | Tensor) -> Tensor:
    """Rows proportional to first^(1 - share) second^share, summing to 1, for rows of probabilities (N, C)."""
    logs = (1.0 - share) * first.clamp_min(SMALLEST_SHARE).log() + share * second.clamp_min(SMALLEST_SHARE).log()
    return logs.softmax(1)
