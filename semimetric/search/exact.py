"""Exact search in blocks of queries and of stored vectors, on the CPU or the GPU, without further packages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from semimetric.core.errors import RunError
from semimetric.core.files import write_atomically
from semimetric.search.hits import Hits, check_k, check_rows, joined, nearest_first
from semimetric.search.index import Index, IndexBackend

BLOCK_ENTRIES = 1 << 23
"""Entries of the largest array of a search: 64 MiB in float64, for any number of vectors and queries."""


class ExactIndex(Index):
    """Compares each query with all ``embeddings`` (N, d), on their device, in float64."""

    def __init__(self, embeddings: Any) -> None:
        self._stored = check_rows(embeddings, "embeddings")
        self.width = self._stored.shape[1]
        self._centre = self._stored.mean(0, dtype=torch.float64)

    def __len__(self) -> int:
        return len(self._stored)

    def search(self, queries: Any, k: int) -> Hits:
        """Find the ``k`` nearest stored vectors of each query; hits at equal distances are sorted by row."""
        asked = check_rows(queries, "queries", self.width).to(self._stored.device)
        k = min(check_k(k), len(self))
        size = max(1, min(len(self), BLOCK_ENTRIES // self.width))
        blocks = asked.split(max(1, BLOCK_ENTRIES // max(size, 2 * k)))
        best = [Hits(block[:, :0].long(), block[:, :0].double()) for block in blocks]
        for start in range(0, len(self), size):
            part = _Part(self._stored[start : start + size], self._centre, start)
            best = [_merged(hits, part.search(block, k), k) for hits, block in zip(best, blocks, strict=True)]
        return joined(best)


class _Part:
    """Some of the stored vectors, (S, d), from row ``start`` on."""

    def __init__(self, stored: Tensor, centre: Tensor, start: int) -> None:
        self._stored, self._centre, self._start = stored.double(), centre, start
        self._around = self._stored - centre
        self._squares = self._around.square().sum(1)

    def search(self, queries: Tensor, k: int) -> Hits:
        """Hits of queries (B, d); |y|^2 - 2 xy selects all that may be among the ``k`` nearest, differences decide."""
        queries, k = queries.double(), min(k, len(self._stored))
        asked = queries - self._centre
        rough = torch.addmm(self._squares[None, :], asked, self._around.T, alpha=-2.0)
        slack = self._rounding(asked.square().sum(1))
        taken = min(2 * k, len(self._stored))
        values, columns = rough.topk(taken, dim=1, largest=False)
        while taken < len(self._stored) and bool((values[:, -1] <= values[:, k - 1] + slack).any()):
            taken = min(2 * taken, len(self._stored))
            values, columns = rough.topk(taken, dim=1, largest=False)
        few = max(1, BLOCK_ENTRIES // (taken * queries.shape[1]))
        pieces = zip(queries.split(few), columns.split(few), strict=True)
        return joined([self._decided(some, candidates, k) for some, candidates in pieces])

    def _rounding(self, squares: Tensor) -> Tensor:
        """Bound on the error of two expanded squares of queries with these |x|^2, each a sum of d + 2 rounded terms."""
        return 8 * (self._stored.shape[1] + 8) * torch.finfo(torch.float64).eps * (squares + self._squares.max())

    def _decided(self, queries: Tensor, candidates: Tensor, k: int) -> Hits:
        """The ``k`` nearest of each query's candidates (B, c), by the distance of differences, then by row."""
        distances = (self._stored[candidates] - queries[:, None, :]).square().sum(2).sqrt()
        return nearest_first(distances, candidates + self._start, k)


def _merged(earlier: Hits, later: Hits, k: int) -> Hits:
    """The ``k`` nearest of both."""
    distances = torch.cat([earlier.distances, later.distances], dim=1)
    return nearest_first(distances, torch.cat([earlier.rows, later.rows], dim=1), k)


def _open(place: str, *_: object) -> ExactIndex:
    try:
        return ExactIndex(np.load(place, allow_pickle=False))
    except (OSError, EOFError, ValueError) as error:
        raise RunError(f"{place} cannot be read: {error}. Build the index again.") from error


def _build(place: str, embeddings: Any, *_: object) -> None:
    stored = check_rows(embeddings, "embeddings")
    array = stored.to("cpu", torch.promote_types(stored.dtype, torch.float32)).numpy()

    def write(temporary: Path) -> None:
        with temporary.open("wb") as file:
            np.save(file, array)

    write_atomically(Path(place), write)


BACKEND = IndexBackend("exact", "a file ending in .npy (exact search)", _open, _build, suffixes=(".npy",))
