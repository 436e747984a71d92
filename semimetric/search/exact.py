"""Exact search in blocks of queries and of stored vectors, on the CPU or the GPU, without further packages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from semimetric.core.errors import RunError
from semimetric.core.files import write_atomically
from semimetric.search.hits import Hits, check_k, check_rows, joined
from semimetric.search.index import Index, IndexBackend

BLOCK_ENTRIES = 1 << 23
"""Entries of the largest array of a search: 64 MiB in float64, for any number of vectors and queries."""


class ExactIndex(Index):
    """Compares each query with all vectors.

    The vectors keep their device and precision. Distances are computed on that device, in float64.

    Parameters
    ----------
    embeddings : (N, d) array
    """

    def __init__(self, embeddings: Any) -> None:
        self._stored = check_rows(embeddings, "embeddings")
        self.width = self._stored.shape[1]
        self._centre = self._stored.mean(0, dtype=torch.float64)

    def __len__(self) -> int:
        return len(self._stored)

    def search(self, queries: Any, k: int) -> Hits:
        """Find the ``k`` nearest stored vectors of each query, or all if fewer are stored.

        Hits at equal distances are sorted by row. Distances are computed from differences, so a copy of a query is at
        exactly 0. The expanded square only preselects candidates.
        """
        asked = check_rows(queries, "queries", self.width).to(self._stored.device)
        k = min(check_k(k), len(self))
        size = max(1, min(len(self), BLOCK_ENTRIES // self.width))
        blocks = asked.split(max(1, BLOCK_ENTRIES // max(size, 2 * k)))
        best: list[Hits | None] = [None] * len(blocks)
        for start in range(0, len(self), size):
            part = _Part(self._stored[start : start + size], self._centre, start)
            best = [_merged(hits, part.search(block, k), k) for hits, block in zip(best, blocks, strict=True)]
        return joined([hits for hits in best if hits is not None])


class _Part:
    """Some of the stored vectors, (S, d), from row ``start`` on."""

    def __init__(self, stored: Tensor, centre: Tensor, start: int) -> None:
        self._stored, self._centre, self._start = stored.double(), centre, start
        self._around = self._stored - centre
        self._squares = self._around.square().sum(1)

    def search(self, queries: Tensor, k: int) -> Hits:
        """Hits of queries (B, d); fewer than ``k`` if the part is smaller.

        |y|^2 - 2 xy selects every candidate that rounding could have moved past the k-th. Distances of differences
        decide among them.
        """
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
        """Bound on the rounding error of two expanded squares of queries with these |x|^2.

        Each is a sum of d + 2 terms below 2 (|x|^2 + |y|^2), and centring rounds each coordinate once.
        """
        return 8 * (self._stored.shape[1] + 8) * torch.finfo(torch.float64).eps * (squares + self._squares.max())

    def _decided(self, queries: Tensor, candidates: Tensor, k: int) -> Hits:
        """The ``k`` nearest of each query's candidates (B, c), by the distance of differences, then by row."""
        rows = candidates.sort(dim=1).values
        distances = (self._stored[rows] - queries[:, None, :]).square().sum(2).sqrt()
        distances, order = distances.sort(dim=1, stable=True)
        return Hits(rows.gather(1, order)[:, :k] + self._start, distances[:, :k])


def _merged(earlier: Hits | None, later: Hits, k: int) -> Hits:
    """The ``k`` nearest of both. ``earlier`` has the smaller rows, so it comes first at equal distances."""
    if earlier is None:
        return later
    distances, order = torch.cat([earlier.distances, later.distances], dim=1).sort(dim=1, stable=True)
    rows = torch.cat([earlier.rows, later.rows], dim=1).gather(1, order)
    return Hits(rows[:, :k], distances[:, :k])


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
