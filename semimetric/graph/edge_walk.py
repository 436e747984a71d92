"""Entries of P = (1 - gamma) (I - gamma Q)^-1 on the edges of a kNN graph, with a bound on their error.

All columns of P are needed, but of each only the entries on the edges of its node. A block of columns is solved by the
Chebyshev iteration in float32, whose terms are added up on the edges alone. It is made for eigenvalues of gamma Q up to
``SPREAD``; the larger ones belong to few slow modes, which a least-squares projection removes after some terms. The
first terms are 0 on most rows, and are computed on the others.

With y the sum so far and r = e - (I - gamma Q) y, the error (1 - gamma) (I - gamma Q)^-1 r = P r is at most max |r|,
because the rows of P are non-negative and sum to 1. The bound is max |r| plus all rounding: a term r' = w gamma Q r +
(1 - w) r'' is off by d <= ((k + 1) w max |r| + 4 (w - 1) max |r''|) u, and these errors e follow e' - e = (w - 1)
(e - e'') - d, so that they add up to at most sum d / (2 - max w). A projection is off by (m + 2) u |U| |c| for m modes
and 3 u max |r|, and by |D| |c| for modes with (I - gamma Q) V = U + D. Sums over edges are float64.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from semimetric.core.precision import full_float32
from semimetric.graph.clustering import lloyd
from semimetric.graph.edges import group_by_node
from semimetric.graph.walk import CACHED_COLUMNS, Walk, solve_walk, walk_lists, walk_product, walk_sums

EDGE_TOLERANCE = 2e-6  # bound on the error of an entry
MODES = 128  # slow modes of the walk that are removed: as many clusters of the graph cost no extra terms
MODE_ROUNDS, MODE_SWEEPS = 12, 3  # rounds of subspace iteration that find them, and products with gamma Q in each
SPREAD = 0.55  # eigenvalues of Q, at most, that the iteration is made for
FIRST_TERMS, LEAST_TERMS, MOST_TERMS = 9, 5, 16  # terms before the first projection: at the first block, and limits
NEXT_TERMS = 8  # most terms between two projections after that
CYCLES = 6  # projections after which another solver takes the block: the graph has more slow modes
FEW_ROWS = 0.3  # share of the rows up to which they are computed alone while all others are 0
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
        with full_float32():  # the bound counts on it
            slow = slow_modes(neighbors, gamma)
            self._order = _near_together(slow.images)
        self._slow = slow._replace(images=slow.images[self._order], modes=slow.modes[self._order])
        self._neighbors = self._order.argsort()[neighbors[self._order]]
        self._walk: Walk = walk_lists(self._neighbors, gamma)
        self._positions, starts = group_by_node(self._neighbors.flatten(), len(neighbors) + 1)
        self._starts: list[int] = starts.tolist()
        self._gamma, self._tolerance, self._failures = gamma, tolerance, 0
        self._first_terms = FIRST_TERMS

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
            with full_float32():
                forward, backward, bound = self._series(places, stop - start)
            if bound <= self._tolerance:
                self._failures = 0
                return self._told(places, start, forward, backward, bound)
            self._failures += 1
        units = torch.zeros(len(self._neighbors), stop - start, dtype=torch.float64, device=self._neighbors.device)
        units.diagonal(-start).fill_(1.0)
        solved = solve_walk(self._neighbors, units, self._gamma, self._tolerance)
        return self._told(places, start, *places.split(places.read(solved)), self._tolerance)

    def _told(self, places: _Places, start: int, forward: Tensor, backward: Tensor, bound: float) -> EdgeColumns:
        """The entries with the numbers that the caller knows the nodes by."""
        k = self._neighbors.shape[1]
        positions = self._order[places.source] * k + places.positions % k
        return EdgeColumns(self._order[start : start + len(backward)], positions, forward, backward, bound)

    def _series(self, places: _Places, width: int) -> tuple[Tensor, Tensor, float]:
        """Entries on the edges by the deflated iteration, and the bound on their error.

        The first term e_j has no entry on an edge, and leaves the residual gamma / k on every edge to j.
        """
        slow = self._slow
        block = _Block(self._walk, self._neighbors, places, width, SPREAD * self._gamma)
        shares = torch.zeros(slow.images.shape[1], width, dtype=torch.float64, device=self._neighbors.device)
        terms, defect, projections = self._first_terms, 0.0, 0
        while True:
            block.iterate(terms, self._tolerance - defect)
            if block.bound + defect <= self._tolerance or projections == CYCLES or not math.isfinite(block.bound):
                break  # sums over very many neighbours leave the range of float32
            along = block.project(slow.images)
            block.rounding += self._projection_rounding(along)
            shares, projections = shares + along, projections + 1
            defect = slow.defect * _largest_row(shares.T)
            if block.bound + defect <= self._tolerance or block.rounding + defect > self._tolerance:
                break
            terms = _terms_left(block.size, (self._tolerance - block.rounding - defect) / 2)
        self._learn_terms(projections, block)
        found = (1 - self._gamma) * (block.entries + places.read_product(slow.modes, shares))
        return *places.split(found), block.bound + defect

    def _learn_terms(self, projections: int, block: _Block) -> None:
        """One term more before the first projection if another had to follow, one less if it had too many."""
        change = 1 if projections > 1 else -1 if block.size < (self._tolerance - block.rounding) / 4 else 0
        self._first_terms = min(MOST_TERMS, max(LEAST_TERMS, self._first_terms + change))

    def _projection_rounding(self, along: Tensor) -> float:
        """Bound on the rounding of U c for the columns c of ``along``: by norms, or by |U| |c| if that is too loose."""
        unit = (len(along) + 2) * UNIT
        by_norms = unit * self._slow.size * _largest_row(along.T)
        if by_norms <= self._tolerance / 4:
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

    def read(self, values: Tensor) -> Tensor:
        """Entries of ``values`` (N, b) on the edges to the nodes of the columns, then on those from them; float64."""
        own = torch.arange(len(self.near), device=values.device)[:, None]
        return torch.cat([values[self.source, self.column], values[self.near, own].flatten()]).double()

    def read_product(self, left: Tensor, right: Tensor) -> Tensor:
        """The same entries of ``left`` (N, m) times ``right`` (m, b)."""
        forward = (left[self.source].double() * right.T[self.column]).sum(1)
        return torch.cat([forward, torch.einsum("bkm,mb->bk", left[self.near].double(), right).flatten()])

    def split(self, entries: Tensor) -> tuple[Tensor, Tensor]:
        """Entries on the edges to the nodes of the columns, and (b, k) on those from them."""
        return entries[: len(self.source)], entries[len(self.source) :].view(self.near.shape)


class _Block:
    """A block of columns that is being solved.

    ``entries`` are those of the solution on the edges. The residual is ``scale`` times ``sums`` (N, b), which saves a
    product with gamma / k for each term; ``size`` is its largest absolute value. ``rounding`` bounds how far it is off.
    """

    def __init__(self, walk: Walk, neighbors: Tensor, places: _Places, width: int, spread: float) -> None:
        self._walk, self._neighbors, self._places, self._spread = walk, neighbors, places, spread
        self._sums = torch.zeros(len(neighbors), width, device=neighbors.device)
        self._sums[places.source, places.column] = 1.0
        self._filled: Tensor | None = None  # (N,) rows that are not 0, while they are few; a GPU has wider blocks
        if neighbors.device.type == "cpu":
            self._filled = torch.zeros(len(neighbors), dtype=torch.bool)
            self._filled[places.source] = True
        self._scale = self.size = walk.factor
        self.rounding = 0.0
        self.entries = torch.zeros(len(places.source) + places.near.numel(), dtype=torch.float64).to(neighbors.device)

    @property
    def bound(self) -> float:
        """Bound on the error of an entry, but for the defect of the modes."""
        return self.size + self.rounding

    def iterate(self, terms: int, wanted: float) -> None:
        """Add terms until the bound is as ``wanted``, at most so many.

        x_{t+1} = w (x_t + r_t) + (1 - w) x_{t-1},  r_{t+1} = w gamma Q r_t + (1 - w) r_{t-1}
        """
        weight, rounded, start = 1.0, self.rounding, self.entries
        found = earlier_found = torch.zeros_like(start)
        earlier, earlier_scale, earlier_size = self._sums, 0.0, 0.0
        for _ in range(terms):
            if self.bound <= wanted:
                break
            found, earlier_found = (
                weight * (found + self._scale * self._places.read(self._sums)) + (1 - weight) * earlier_found,
                found,
            )
            error = (self._neighbors.shape[1] + 1) * weight * self.size + 4 * (weight - 1) * earlier_size
            rounded += UNIT * error * (1 - self._spread**2 / 2) / (1 - self._spread**2)  # 2 - w for the largest w
            scale = weight * self._walk.factor * self._scale
            sums, largest = self._onward(earlier, (1 - weight) * earlier_scale / scale)
            earlier, earlier_scale, earlier_size = self._sums, self._scale, self.size
            self._sums, self._scale, self.size, self.rounding = sums, scale, scale * largest, rounded
            self.entries = start + found
            weight = 1 / (1 - self._spread**2 * (0.5 if weight == 1.0 else weight / 4))

    def _onward(self, earlier: Tensor, share: float) -> tuple[Tensor, float]:
        """Sums of the residual over neighbours plus a share of an ``earlier`` one, and its largest absolute value."""
        rows = self._rows_reached()
        if rows is None:
            sums = walk_sums(self._walk, self._sums)
            sums = sums.add_(earlier, alpha=share) if share else sums
            return sums, _largest(sums)
        values = torch.nn.functional.embedding_bag(self._neighbors[rows], self._sums, mode="sum")
        values.add_(earlier[rows], alpha=share)
        sums = torch.zeros_like(self._sums)
        sums[rows] = values
        return sums, _largest(values)

    def _rows_reached(self) -> Tensor | None:
        """Rows of the next residual that can be other than 0; None if they are many."""
        if self._filled is None:
            return None
        self._filled = self._filled | self._filled[self._neighbors].any(1)
        rows = self._filled.nonzero().flatten()
        if len(rows) > FEW_ROWS * len(self._filled):
            self._filled = None
            return None
        return rows

    def project(self, images: Tensor) -> Tensor:
        """Take the part along orthonormal ``images`` (N, m) out of the residual; its coefficients (m, b)."""
        along = images.T @ self._sums * self._scale
        self._sums = torch.addmm(self._sums, images, along, beta=self._scale, alpha=-1.0)
        self.rounding += 3 * UNIT * self.size
        self._filled, self._scale, self.size = None, 1.0, _largest(self._sums)
        return along


def _near_together(images: Tensor) -> Tensor:
    """Node numbers (N,) by clusters of the slow modes (N, m): a product with Q then reads rows that lie near."""
    rows = torch.nn.functional.normalize(images)
    count = min(MOST_CLUSTERS, max(1, len(rows) // CLUSTER_ROWS))
    trained = rows[:: max(1, len(rows) // (TRAINED * count))]
    found = lloyd(trained, trained[:: max(1, len(trained) // count)][:count], CLUSTER_STEPS, 0.0)
    return lloyd(rows, found.centres, 0, 0.0).assignment.argsort(stable=True)


def _terms_left(size: float, goal: float) -> int:
    """Terms that take a residual of this size to the goal if each halves it; at least 2."""
    return min(NEXT_TERMS, max(2, math.ceil(math.log2(max(size, 1e-30) / max(goal, 1e-30)))))


def _largest(values: Tensor) -> float:
    """The largest absolute value; 0 of none, as where no edge leads to the nodes of a block."""
    if not values.numel():
        return 0.0
    low, high = values.aminmax()
    return max(-float(low), float(high))


def _largest_row(values: Tensor) -> float:
    """The largest norm of a row."""
    return float(torch.linalg.vector_norm(values, dim=1).max())
