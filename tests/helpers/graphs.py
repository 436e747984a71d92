"""Small graphs for tests, ordinary and odd."""

from __future__ import annotations

import torch
from torch import Tensor

from semimetric.graph import nearest_neighbors


def sample(seed: int, count: int = 60, width: int = 4) -> Tensor:
    return torch.randn(count, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def graph(seed: int, count: int = 60, k: int = 5, labelled: float = 0.3) -> tuple[Tensor, Tensor, Tensor]:
    points = sample(seed, count)
    generator = torch.Generator().manual_seed(seed + 1)
    labels = torch.randint(3, (count,), generator=generator)
    labels[torch.rand(count, generator=generator) > labelled] = -1
    return points, nearest_neighbors(points, k), labels


def directed_cycle(count: int) -> Tensor:
    """Each node knows the next one alone: the eigenvalues of Q lie all around the unit circle."""
    return ((torch.arange(count) + 1) % count)[:, None]


def star(count: int) -> Tensor:
    """All know node 0, which knows node 1; the others are orphans."""
    neighbors = torch.zeros(count, 1, dtype=torch.long)
    neighbors[0] = 1
    return neighbors


def cliques(sizes: int, members: int) -> Tensor:
    """Complete graphs without an edge between them."""
    clique = torch.tensor([[j for j in range(members) if j != i] for i in range(members)])
    return torch.cat([clique + members * number for number in range(sizes)])


GRAPHS = {
    "cycle": directed_cycle(60),
    "star": star(60),
    "cliques": cliques(12, 5),
    "circulant": torch.stack([(torch.arange(60) + step) % 60 for step in (7, 11, 23, 31)], dim=1),
    "neighbours": nearest_neighbors(sample(1), 5),
}
