"""Pairs of examples, taken evenly and without chance where there are too many of them."""

from __future__ import annotations

import math

import torch
from torch import Tensor

GOLDEN_RATIO = (math.sqrt(5) - 1) / 2


def spread_pairs(count: int, limit: int, device: torch.device | str = "cpu") -> Tensor:
    """At most ``limit`` unordered pairs (P, 2) of ``count`` items, spread evenly over all; all where they fit."""
    positions = torch.arange(count, device=device)
    return _listed(positions + 1, positions.flip(0), limit)


def labelled_pairs(classes: Tensor, most_similar: int, most_dissimilar: int) -> tuple[Tensor, Tensor]:
    """Pairs of one class and pairs of two, as positions in ``classes`` (n,), spread evenly over all of their kind."""
    order = classes.argsort(stable=True)
    ordered = classes[order]
    positions = torch.arange(len(classes), device=classes.device)
    ends = torch.searchsorted(ordered, ordered, right=True)
    similar = _listed(positions + 1, ends - positions - 1, most_similar)
    dissimilar = _listed(ends, len(classes) - ends, most_dissimilar)
    return order[similar], order[dissimilar]


def _listed(first_partners: Tensor, partner_counts: Tensor, limit: int) -> Tensor:
    """One pair from each of ``limit`` equal parts of a list that is never written out, in O(n + limit) memory.

    In that list the item i has the ``partner_counts[i]`` partners that follow from ``first_partners[i]`` on. The place
    within a part follows multiples of the golden ratio: steps of one length would fall in with classes of one size,
    and meet the same items again and again.
    """
    ends = partner_counts.cumsum(0)
    total = int(ends[-1]) if len(ends) else 0
    count = min(limit, total)
    numbers = torch.arange(count + 1, device=ends.device)
    edges = numbers * total // max(count, 1)
    places = (numbers[:-1] * GOLDEN_RATIO) % 1.0
    ranks = edges[:-1] + (places * edges.diff()).long()
    left = torch.searchsorted(ends, ranks, right=True)
    right = first_partners[left] + ranks - (ends - partner_counts)[left]
    return torch.stack([left, right], dim=1)
