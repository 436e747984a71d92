"""Entries of P = (1 - gamma) (I - gamma Q)^-1 on the edges of a kNN graph, with a bound on their error.

All columns of P are needed, but of each only the entries on the edges of its node. A block of columns is a power series
in float32 whose terms are added up on the edges alone. The terms shrink by the eigenvalues of gamma Q, which are near 1
for its slow modes alone; a least-squares projection removes these before every few terms.

With y the sum so far and r = e - (I - gamma Q) y, the error (1 - gamma) (I - gamma Q)^-1 r = P r is at most max |r|,
because the rows of P are non-negative and sum to 1. The bound is max |r| of the last term plus the rounding of all
terms before: (k + 1) u max |term| for a product with Q, (m + 2) u |U| |c| for a projection onto m modes, and |D| |c|
for modes with (I - gamma Q) V = U + D. Sums over edges are float64.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

from semimetric.graph.clustering import lloyd
from semimetric.graph.edges import group_by_node
from semimetric.graph.walk import CACHED_COLUMNS, Walk, solve_walk, walk_lists, walk_product, walk_sums

EDGE_TOLERANCE = 2e-6  # bound on the error of an entry
MODES = 128  # slow modes of the walk that are removed: as many clusters of the graph cost no extra terms
MODE_ROUNDS, MODE_SWEEPS = 12, 3  # rounds of subspace iteration that find them, and products with gamma Q in each
CYCLE_TERMS = 8  # terms between two projections
CYCLES = 6  # projections after which another solver takes the block: the graph has more slow modes
GPU_ENTRIES = 1 << 26  # entries of a block of columns on a GPU
WARP = 32  # threads that read a row together on a GPU
CLUSTER_ROWS, MOST_CLUSTERS = 500, 1024  # nodes of a cluster that lies together, and most clusters
TRAINED, CLUSTER_STEPS = 32, 4  # nodes for each cluster from which it is learned, and iterations
FAILURES = 3  # blocks in a row after which the series is not tried any more
UNIT = torch.finfo(torch.float32).eps / 2


class SlowModes(NamedTuple):
    """Directions in which the walk forgets slowly: U (N, m), and V (N, m) with (I - gamma Q) V = U + D.

    U is orthonormal and D is 0 up to rounding. ``size`` is the largest norm of a row of U, ``defect`` that of D.
    """

    images: Tensor
    modes: Tensor
    size: float
    defect: float


class EdgeColumns(NamedTuple):
    """Entries of a block of columns in float64, and the ``bound`` on their error.

    ``forward`` are P_ij on the edges i -> j at the flat ``positions`` in the neighbour lists, ``backward`` (b, k) P_ji
    on the edges of its ``nodes`` (b,) j.
    """

    nodes: Tensor
    positions: Tensor
    forward: Tensor
    backward: Tensor
    bound: float


def slow_modes(neighbors: Tensor, gamma: float) -> SlowModes:
    """The slow modes of the walk by subspace iteration, in float32. They pay off from some hundred columns on."""
    walk = walk_lists(neighbors, gamma)
    count = min(MODES, len(neighbors) // 8 + 1)
    start = torch.randn(len(neighbors), count, generator=torch.Generator().manual_seed(0)).to(neighbors.device)
    span = torch.linalg.qr(start).Q
    for _ in range(MODE_ROUNDS):
        for _ in range(MODE_SWEEPS):
            span = walk_product(walk, span)
        span = torch.linalg.qr(span).Q
    factor = torch.linalg.qr(span - walk_product(walk, span), mode="r").R
    modes = torch.linalg.solve_triangular(factor, span, upper=True, left=False).contiguous()
    exact = modes.double() - walk_product(walk, modes.double())
    images = exact.float()
    return SlowModes(images, modes, _largest_row(images), _largest_row(exact - images))


class EdgeWalk:
    """Solves blocks of columns of P for their entries on the edges, to the ``tolerance``."""

    def __init__(self, neighbors: Tensor, gamma: float, tolerance: float = EDGE_TOLERANCE) -> None:
        with _single_precision():
            slow = slow_modes(neighbors, gamma)
            self._order = _near_together(slow.images)
        self._slow = slow._replace(images=slow.images[self._order], modes=slow.modes[self._order])
        self._neighbors = self._order.argsort()[neighbors[self._order]]
        self._walk: Walk = walk_lists(self._neighbors, gamma)
        self._positions, starts = group_by_node(self._neighbors.flatten(), len(neighbors) + 1)
        self._starts: list[int] = starts.tolist()
        self._gamma, self._tolerance, self._failures = gamma, tolerance, 0

    @property
    def width(self) -> int:
        """Columns that are solved at once."""
        on_cpu = self._neighbors.device.type == "cpu"
        return CACHED_COLUMNS if on_cpu else max(WARP, GPU_ENTRIES // len(self._neighbors) // WARP * WARP)

    def blocks(self) -> Iterator[EdgeColumns]:
        """All columns, block by block."""
        for start in range(0, len(self._neighbors), self.width):
            yield self.columns(start, min(start + self.width, len(self._neighbors)))

    def columns(self, start: int, stop: int) -> EdgeColumns:
        """The columns from ``start`` to ``stop`` in the order of this solver."""
        places = _Places.of(self._neighbors, self._positions[self._starts[start] : self._starts[stop]], start, stop)
        if self._failures < FAILURES:
            with _single_precision():
                forward, backward, bound = self._series(places, stop - start)
            if bound <= self._tolerance:
                self._failures = 0
                return self._told(places, start, forward, backward, bound)
            self._failures += 1
        units = torch.zeros(len(self._neighbors), stop - start, dtype=torch.float64, device=self._neighbors.device)
        units.diagonal(-start).fill_(1.0)
        solved = solve_walk(self._neighbors, units, self._gamma, self._tolerance)
        return self._told(places, start, *places.read(solved), self._tolerance)

    def _told(self, places: _Places, start: int, forward: Tensor, backward: Tensor, bound: float) -> EdgeColumns:
        """The entries with the numbers that the caller knows the nodes by."""
        k = self._neighbors.shape[1]
        positions = self._order[places.source] * k + places.positions % k
        return EdgeColumns(self._order[start : start + len(backward)], positions, forward, backward, bound)

    def _series(self, places: _Places, width: int) -> tuple[Tensor, Tensor, float]:
        """Entries on the edges by the deflated series, and the bound on their error.

        The first term e_j has no entry on an edge. The second is gamma / k for every edge to j. Within a cycle the
        terms are ``scale`` times ``sums``, which saves a product with gamma / k for each.
        """
        slow, factor = self._slow, self._walk.factor
        sums = slow.images.new_zeros(len(self._neighbors), width)
        sums[places.source, places.column] = 1.0
        shares = sums.new_zeros(slow.images.shape[1], width, dtype=torch.float64)
        forward, backward = shares.new_zeros(len(places.source)), shares.new_zeros(places.near.shape)
        scale, rounding, terms = factor, 0.0, CYCLE_TERMS
        for _ in range(CYCLES):
            along = slow.images.T @ sums * scale
            shares += along
            sums = torch.addmm(sums, slow.images, along, beta=scale, alpha=-1.0)
            before, scale = _largest(sums), 1.0
            rounding += self._projection_rounding(along)
            rounding += (terms + 1) * (self._neighbors.shape[1] + 1) * UNIT * before
            for _ in range(terms):
                onward, inward = places.read(sums)
                forward, backward = forward + scale * onward, backward + scale * inward
                sums, scale = walk_sums(self._walk, sums), scale * factor
            after = scale * _largest(sums)
            bound = after + rounding + slow.defect * _largest_row(shares.T)
            if bound <= self._tolerance or rounding > self._tolerance:
                break
            terms = _terms_left(before, after, terms, (self._tolerance - rounding) / 2)
        onward, inward = places.read_product(slow.modes, shares)
        return (1 - self._gamma) * (forward + onward), (1 - self._gamma) * (backward + inward), bound

    def _projection_rounding(self, along: Tensor) -> float:
        """Bound on the rounding of U c for the columns c of ``along``: by norms, or by |U| |c| if that is too loose."""
        unit = (len(along) + 2) * UNIT
        by_norms = unit * self._slow.size * _largest_row(along.T)
        if by_norms <= self._tolerance / 8:
            return by_norms
        return 1.001 * unit * _largest(self._slow.images.abs() @ along.abs())


class _Places(NamedTuple):
    """Where the entries on edges stand in a block of columns.

    Edge e runs from row ``source[e]`` to the node of column ``column[e]``; ``near`` (b, k) are the rows of the
    neighbours of each column's node.
    """

    positions: Tensor
    source: Tensor
    column: Tensor
    near: Tensor

    @classmethod
    def of(cls, neighbors: Tensor, positions: Tensor, start: int, stop: int) -> _Places:
        """The places of the columns from ``start`` to ``stop``, whose edges stand at ``positions`` in the lists."""
        column = neighbors.flatten()[positions] - start
        return cls(positions, positions // neighbors.shape[1], column, neighbors[start:stop])

    def read(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """Entries of ``values`` (N, b) on the edges to the nodes of the columns and on those from them, in float64."""
        own = torch.arange(len(self.near), device=values.device)[:, None]
        return values[self.source, self.column].double(), values[self.near, own].double()

    def read_product(self, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
        """The same entries of ``left`` (N, m) times ``right`` (m, b)."""
        forward = (left[self.source].double() * right.T[self.column]).sum(1)
        return forward, torch.einsum("bkm,mb->bk", left[self.near].double(), right)


def _near_together(images: Tensor) -> Tensor:
    """Node numbers (N,) by clusters of the slow modes (N, m): a product with Q then reads rows that lie near."""
    rows = torch.nn.functional.normalize(images)
    count = min(MOST_CLUSTERS, max(1, len(rows) // CLUSTER_ROWS))
    trained = rows[:: max(1, len(rows) // (TRAINED * count))]
    found = lloyd(trained, trained[:: max(1, len(trained) // count)][:count], CLUSTER_STEPS, 0.0)
    return lloyd(rows, found.centres, 0, 0.0).assignment.argsort(stable=True)


@contextmanager
def _single_precision() -> Iterator[None]:
    """Products of float32 matrices on a GPU in float32, whatever the process has chosen: the bound counts on it."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def _terms_left(before: float, after: float, terms: int, goal: float) -> int:
    """Terms of the next cycle, if they go on to shrink as in the last one: as many as the goal takes, at most 8."""
    shrinks = math.log(max(before, 1e-30) / max(after, 1e-30)) / terms
    wanted = math.log(max(after, 1e-30) / max(goal, 1e-30)) / shrinks if shrinks > 0 else CYCLE_TERMS
    return min(CYCLE_TERMS, max(2, math.ceil(wanted)))


def _largest(values: Tensor) -> float:
    """The largest absolute value."""
    low, high = values.aminmax()
    return max(-float(low), float(high))


def _largest_row(values: Tensor) -> float:
    """The largest norm of a row."""
    return float(torch.linalg.vector_norm(values, dim=1).max())
