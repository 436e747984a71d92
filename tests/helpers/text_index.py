"""A search backend as another package would add it: vectors in a text file, sorted by NumPy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from semimetric.search import Hits, Index, IndexBackend
from semimetric.search.hits import check_k, check_rows


class TextIndex(Index):
    """The vectors of a text file, one in each line."""

    def __init__(self, path: str) -> None:
        self._stored = np.loadtxt(path, ndmin=2)
        self.width = self._stored.shape[1]

    def __len__(self) -> int:
        return len(self._stored)

    def search(self, queries: object, k: int) -> Hits:
        """Find the nearest vectors by comparing with all."""
        asked = check_rows(queries, "queries", self.width).double().numpy()
        distances = np.linalg.norm(asked[:, None] - self._stored[None], axis=2)
        rows = distances.argsort(axis=1, kind="stable")[:, : check_k(k)]
        return Hits(torch.from_numpy(rows), torch.from_numpy(np.take_along_axis(distances, rows, axis=1)))


def build(place: str, embeddings: object, *_: object) -> None:
    """Write the vectors to a text file."""
    np.savetxt(Path(place), check_rows(embeddings, "embeddings").numpy())


BACKEND = IndexBackend(
    name="text",
    places="a file ending in .txt (text)",
    open=lambda place, width, collection: TextIndex(place),
    build=build,
    suffixes=(".txt",),
)
