"""Exact nearest vectors by Euclidean distance, on the CPU or a GPU, in bounded memory.

Three steps, each only for the queries that the one before left open:

1. The expanded square |y|^2 - 2 xy in float32 preselects a few candidates more than asked for. Their differences decide
   in float64, if the first vector left out is farther than the last one wanted by more than the rounding error.
2. The same in float64, for near ties.
3. Differences in float64 to all vectors, for ties: copies, or points of a grid.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from semimetric.core.precision import is_lowered_on_gpu

BLOCK_ENTRIES = 1 << 21  # entries of the largest array of a search on a CPU: 8 MiB in float32, about the cache
GPU_BLOCK_ENTRIES = 1 << 26  # the same on a GPU
GPU_PART_ENTRIES = 1 << 24  # entries of the stored vectors that are compared at once on a GPU: 128 MiB in float64
TIE_BLOCKS = 4  # parts of a block of queries that are decided in float64 one after the other
SPARE = 4  # candidates beyond those asked for
SHORT_ROWS = 32  # entries of a row for each one wanted, below which topk is faster than groups
TF32_ROUNDING = 2.0**-11


class Found(NamedTuple):
    """Rows (Q, k) of the nearest vectors, nearest first, and their distances (Q, k) in float64."""

    rows: Tensor
    distances: Tensor


def nearest_first(distances: Tensor, rows: Tensor, k: int | None = None) -> Found:
    """Sort what was found for each query by distance, and by row at equal distances; keep the first ``k``."""
    rows, by_row = rows.sort(dim=1)
    distances, by_distance = distances.gather(1, by_row).sort(dim=1, stable=True)
    return Found(rows.gather(1, by_distance)[:, :k], distances[:, :k])


class NearestVectors:
    """Finds the nearest of the ``stored`` vectors (N, d), which are finite; prepared once for any number of searches.

    Vectors are shifted by their mean and scaled by a power of 2. Neither changes the order of distances. Both keep
    squares within the range of float32.
    """

    def __init__(self, stored: Tensor) -> None:
        entries = GPU_PART_ENTRIES if stored.is_cuda else BLOCK_ENTRIES
        self._size = max(1, min(len(stored), entries // max(stored.shape[1], 64)))
        frame = _Frame.around(stored.split(self._size))
        self._parts = [_Part(part, frame) for part in stored.split(self._size)]

    def search(self, queries: Tensor, k: int, own: Tensor | None = None) -> Found:
        """The ``k`` nearest stored vectors of each query (Q, d); equal distances are sorted by row.

        With ``own`` (Q,), query i is the stored vector ``own[i]``, and is not found by itself.
        """
        rows = max(1, _entries_at_once(queries) // max(self._size, 2 * k))
        selves = (torch.full((len(queries),), -1, device=queries.device) if own is None else own).split(rows)
        blocks = queries.split(rows)
        best = [Found(block[:, :0].long(), block[:, :0].double()) for block in blocks]
        start = 0
        for part in self._parts:
            for number, block in enumerate(blocks):
                found = part.search(block, selves[number] - start, k)
                best[number] = _merged(best[number], Found(found.rows + start, found.distances), k)
            start += len(part)
            part.release()
        return Found(torch.cat([found.rows for found in best]), torch.cat([found.distances for found in best]))


class _Frame(NamedTuple):
    """Scale of all vectors of a search, a power of 2, and their mean (d,) after scaling."""

    scale: float
    centre: Tensor

    @classmethod
    def around(cls, parts: Sequence[Tensor]) -> _Frame:
        """Shift by the mean, and scale to a largest entry between 1 and 2."""
        first = _power_of_two(max(float(part.abs().max()) for part in parts))
        total = torch.stack([(part.double() * first).sum(0) for part in parts]).sum(0)
        mean = total / sum(len(part) for part in parts)
        second = _power_of_two(max(float((part.double() * first - mean).abs().max()) for part in parts))
        return cls(first * second, mean * second)


class _Part:
    """Some of the stored vectors (S, d)."""

    def __init__(self, stored: Tensor, frame: _Frame) -> None:
        self._stored, self._frame = stored, frame
        placed = self._scaled - frame.centre
        squares = placed.square().sum(1)
        self._largest = math.sqrt(float(squares.max()))
        self._rough = {torch.float32: (placed.float(), squares.float())}
        self.release()

    def __len__(self) -> int:
        return len(self._stored)

    @cached_property
    def _scaled(self) -> Tensor:
        return self._stored.double() * self._frame.scale

    def release(self) -> None:
        """Forget the copies in float64, which few searches need."""
        self._rough.pop(torch.float64, None)
        self.__dict__.pop("_scaled", None)

    def search(self, queries: Tensor, selves: Tensor, k: int) -> Found:
        """Find the ``k`` nearest of this part; query i is its vector ``selves[i]`` if it has one of that number."""
        k = min(k, len(self))
        asked = queries.double() * self._frame.scale
        found, sure = self._preselected(asked, selves, k, torch.float32)
        for step in (torch.float64, None):
            unsure = (~sure).nonzero().flatten()
            if len(unsure) == 0:
                break
            for some in unsure.split(-(-len(asked) // TIE_BLOCKS)):
                again, sure[some] = self._decided(asked[some], selves[some], k, step)
                found.rows[some], found.distances[some] = again
        return Found(found.rows, found.distances / self._frame.scale)

    def _decided(self, asked: Tensor, selves: Tensor, k: int, step: torch.dtype | None) -> tuple[Found, Tensor]:
        if step is not None:
            return self._preselected(asked, selves, k, step)
        return self._by_differences(asked, selves, k), torch.ones(len(asked), dtype=torch.bool, device=asked.device)

    def _preselected(self, asked: Tensor, selves: Tensor, k: int, dtype: torch.dtype) -> tuple[Found, Tensor]:
        """What candidates by expanded squares in ``dtype`` give, and for which queries (Q,) that is certain."""
        prepared = self._rough.get(dtype)
        if prepared is None:  # kept in a local name: another thread may release it
            placed = self._scaled - self._frame.centre
            prepared = self._rough[dtype] = (placed, placed.square().sum(1))
        vectors, squares = prepared
        centred = asked - self._frame.centre
        rough = torch.addmm(squares[None, :], centred.to(dtype), vectors.T, alpha=-2.0)
        _exclude(rough, selves)
        taken = min(k + SPARE, len(self))
        values, columns = smallest(rough, taken)
        sure = values[:, -1].double() > values[:, k - 1].double() + self._rounding(centred, dtype)
        distances = self._distances(asked, selves, columns)
        return nearest_first(distances, columns, k), sure | (taken == len(self))

    def _distances(self, asked: Tensor, selves: Tensor, columns: Tensor) -> Tensor:
        """Distances (Q, c) to the vectors ``columns`` (Q, c); copies of a vector have the same in all parts."""
        pieces = max(1, _entries_at_once(asked) // (columns.shape[1] * asked.shape[1]))
        squares = [
            (self._stored[near].double().mul_(self._frame.scale) - query[:, None, :]).square().sum(2)
            for near, query in zip(columns.split(pieces), asked.split(pieces), strict=True)
        ]
        return torch.cat(squares).sqrt_().masked_fill_(columns == selves[:, None], torch.inf)

    def _rounding(self, asked: Tensor, dtype: torch.dtype) -> Tensor:
        """Bound (Q,) on the error of the difference of two expanded squares.

        With unit roundoff u, each is off by at most 2 (d + 4) u |x| |y| + 4 u |y|^2: rounded vectors, a sum of d
        products in any order, a rounded square and a rounded sum.
        """
        unit = torch.finfo(dtype).eps / 2
        if dtype == torch.float32 and asked.is_cuda and is_lowered_on_gpu():
            unit = TF32_ROUNDING
        sizes = asked.square().sum(1).sqrt()
        slack: Tensor = unit * self._largest * (4 * (asked.shape[1] + 4) * sizes + 8 * self._largest)
        return slack

    def _by_differences(self, asked: Tensor, selves: Tensor, k: int) -> Found:
        """The ``k`` nearest by distances to all vectors of this part."""
        distances = torch.cdist(asked, self._scaled, compute_mode="donot_use_mm_for_euclid_dist")
        _exclude(distances, selves)
        limit = distances.kthvalue(k, dim=1, keepdim=True).values
        nearer, level = distances < limit, distances == limit
        wanted = nearer | (level & (level.cumsum(1) <= k - nearer.sum(1, keepdim=True)))
        columns = wanted.nonzero()[:, 1].view(len(asked), k)
        return nearest_first(self._distances(asked, selves, columns), columns)


def smallest(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The ``count`` smallest entries of each row (Q, S) and their columns, ascending.

    They lie in the groups with the ``count`` smallest minima, which are found in the same way. Minima are vectorised,
    topk is not.
    """
    if values.shape[1] < SHORT_ROWS * count:
        found = values.topk(count, dim=1, largest=False)
        return found.values, found.indices
    members = max(4, math.isqrt(values.shape[1] // count) // 2)
    groups = values.shape[1] // members
    grouped = values[:, : members * groups].unflatten(1, (members, groups))
    chosen = smallest(grouped.amin(1), count)[1][:, None, :].expand(-1, members, -1)
    columns = chosen + groups * torch.arange(members, device=values.device)[:, None]
    rest = torch.arange(members * groups, values.shape[1], device=values.device).expand(len(values), -1)
    columns = torch.cat([columns.flatten(1), rest], dim=1)
    found = values.gather(1, columns).topk(count, dim=1, largest=False)
    return found.values, columns.gather(1, found.indices)


def _exclude(distances: Tensor, selves: Tensor) -> None:
    """Set the distance of each query to itself, which is in column ``selves`` (Q,) if there is such a column.

    Nothing is read back from the device.
    """
    columns = selves.clamp(0, distances.shape[1] - 1)[:, None]
    outside = columns != selves[:, None]
    distances.scatter_(1, columns, distances.gather(1, columns).where(outside, torch.inf))


def _merged(earlier: Found, later: Found, k: int) -> Found:
    if earlier.rows.shape[1] == 0:
        return later
    distances = torch.cat([earlier.distances, later.distances], dim=1)
    return nearest_first(distances, torch.cat([earlier.rows, later.rows], dim=1), k)


def _entries_at_once(tensor: Tensor) -> int:
    return GPU_BLOCK_ENTRIES if tensor.is_cuda else BLOCK_ENTRIES


def _power_of_two(size: float) -> float:
    """The power of 2 that brings ``size`` between 1 and 2; 1 for 0."""
    return math.ldexp(1.0, min(900, 1 - math.frexp(size)[1])) if size else 1.0
