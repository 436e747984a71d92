"""References for searches."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from semimetric.search import Hits


def brute_force(stored: Tensor, queries: Tensor, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows and distances by float64 differences, one pair at a time, sorted by (distance, row)."""
    vectors, asked = stored.double().numpy(), queries.double().numpy()
    distances = np.array([[np.sqrt(((query - vector) ** 2).sum()) for vector in vectors] for query in asked])
    rows = np.array([np.lexsort((np.arange(len(vectors)), line)) for line in distances])[:, :k]
    return rows, np.take_along_axis(distances, rows, axis=1)


def recall(found: Hits, wanted: Hits) -> float:
    """Share of the wanted rows that were found."""
    return float((found.rows[:, :, None] == wanted.rows[:, None, :]).any(1).double().mean())
