"""Deterministic, evenly spread samples of pairs of examples."""

from __future__ import annotations

import math

import torch
from torch import Tensor

GOLDEN_RATIO = (math.sqrt(5) - 1) / 2


def spread_pairs(count: int, limit: int, device: torch.device | str = "cpu") -> Tensor:
    """At most ``limit`` unordered pairs (P, 2) of ``count`` items, evenly spread; all pairs if there are no more."""
    positions = torch.arange(count, device=device)
    return _evenly_spread(positions + 1, positions.flip(0), limit)


def labelled_pairs(classes: Tensor, most_similar: int, most_dissimilar: int) -> tuple[Tensor, Tensor]:
    """Pairs of one class and pairs of two classes, as positions in ``classes`` (n,), each kind evenly spread."""
    order = classes.argsort(stable=True)
    ordered = classes[order]
    positions = torch.arange(len(classes), device=classes.device)
    ends = torch.searchsorted(ordered, ordered, right=True)
    similar = _evenly_spread(positions + 1, ends - positions - 1, most_similar)
    dissimilar = _evenly_spread(ends, len(classes) - ends, most_dissimilar)
    return order[similar], order[dissimilar]


def _evenly_spread(first_partners: Tensor, partner_counts: Tensor, limit: int) -> Tensor:
    """One pair from each of ``limit`` equal parts of an implicit list of pairs, in O(n + limit) memory.

    In that list item i has ``partner_counts[i]`` consecutive partners from ``first_partners[i]`` on. Positions within
    the parts follow multiples of the golden ratio. A constant stride would repeat the same items if classes have equal
    size.
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
