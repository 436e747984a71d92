"""Approximate nearest neighbours of many rows: an inverted file, measured before it is used.

Rows are put into lists around k-means centres. A row is compared with the members of the lists whose centres are
nearest to it. How many lists that takes is read from a sample of rows, whose exact neighbours are known: a neighbour is
found if its list is probed. Lists grow with the root of the number of rows, as comparing rows with centres and with
members of lists then grow alike. Candidates are found and sorted in float32, by differences.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from semimetric.core import ranks
from semimetric.core.arrays import check_features
from semimetric.graph.clustering import lloyd
from semimetric.graph.nearest import Found, NearestVectors, nearest_first, smallest
from semimetric.graph.neighbors import check_k, nearest_neighbors

EXACT_ROWS = 10_000  # most rows whose neighbours are computed exactly in a graph
RECALL, ERRORS = 0.983, 2.0  # recall that the sample must reach, less so many standard errors
SAMPLE = 1_000  # rows of that sample
LIST_ROWS, SIZED_FOR = 200, 20_000  # mean size of a list up to so many rows; beyond, it grows with their root
SAME = 1e-6  # share by which squared distances that count as equal may differ
CENTRED = 10_000  # rows, at least, whose median is the centre of all
TRAINED = 32  # rows for each list from which k-means learns the centres
LEAST_PROBES = 4  # lists that are probed at least
LLOYD_STEPS = 6  # iterations that find the centres
SPARE = 5  # candidates beyond k whose differences are computed; the row itself is one
QUERIES = 8_192  # queries compared with a list at once
BLOCK_ENTRIES, GPU_BLOCK_ENTRIES = 1 << 21, 1 << 26  # entries of the largest array, on a CPU and on a GPU

_log = logging.getLogger(__name__)


class _Lists(NamedTuple):
    """Rows sorted into lists.

    ``rows`` (N, d), in float32, centred and scaled, and their ``squares`` (N,) stand list by list: those of list i from
    ``starts[i]`` on. ``numbers`` (N,) are their row numbers.
    """

    rows: Tensor
    squares: Tensor
    numbers: Tensor
    starts: list[int]


def graph_neighbors(features: Any, k: int) -> Tensor:
    """The ``k`` nearest neighbours of every row for a graph: exact up to 10,000 rows, then nearly all of them.

    Parameters
    ----------
    features, k : array-like, int
        As for ``nearest_neighbors``.

    Returns
    -------
    (N, k) int64 tensor
        Row numbers, nearest first. Beyond 10,000 rows, at least 98.3 % of the neighbours are the exact ones, by two
        standard errors of a sample of 1,000 rows; the log says how many. Where that would take half of all
        comparisons, or float32 does not tell near rows apart, all lists are exact.
    """
    points = check_features(features)
    check_k(k, len(points))
    if len(points) <= EXACT_ROWS:
        return nearest_neighbors(points, k)
    rows = _placed(points)
    centres = _centres(rows)
    sample = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))[:SAMPLE].to(rows.device)
    exact = NearestVectors(points).search(points[sample], k, sample)
    probes = ranks.of_first(_probes_for(rows, centres, sample, exact.rows))
    if 2 * probes > len(centres):
        _log.info("Exact graph of %d examples: half of the lists would have to be probed.", len(points))
        return nearest_neighbors(points, k)
    probed = ranks.in_parts(lambda part: _nearest_centres(rows[part], centres, probes), len(rows))
    lists = _make_lists(rows, probed[:, 0], len(centres))
    found = ranks.in_parts(partial(_rows_found, lists, probed, k), len(rows))
    recall = ranks.of_first(_recall(points, sample, found[sample], exact.rows))
    if recall < RECALL:
        _log.info("Exact graph of %d examples: float32 does not tell near ones apart.", len(points))
        return nearest_neighbors(points, k)
    facts = (len(points), probes, len(centres), recall, len(sample))
    _log.info("Approximate graph of %d examples: %d of %d lists probed, recall %.3f on %d examples.", *facts)
    return found


def _recall(points: Tensor, sample: Tensor, found: Tensor, exact: Tensor) -> float:
    """Share of what was ``found`` (S, k) for a sample of rows that is as near as the last of the ``exact`` ones."""
    far, near = (_squared_distances(points, sample, rows) for rows in (found, exact[:, -1:]))
    return float((far <= near * (1 + SAME)).double().mean())


def _squared_distances(points: Tensor, sample: Tensor, near: Tensor) -> Tensor:
    """Squared distances (S, c) of a sample of points to those in the rows ``near`` (S, c), in float64 and scaled."""
    unit, pieces = float(points.abs().max()), max(1, _entries_at_once(points) // (near.shape[1] * points.shape[1]))
    both = zip(sample.split(pieces), near.split(pieces), strict=True)
    pairs = ((points[own][:, None].double() / unit, points[rows].double() / unit) for own, rows in both)
    return torch.cat([(there - here).square_().sum(2) for here, there in pairs])


def _probes_for(rows: Tensor, centres: Tensor, sample: Tensor, near: Tensor) -> int:
    """Lists to probe so that enough of the exact neighbours ``near`` (S, k) of a sample of rows are in them.

    A neighbour's rank is the number of lists that are probed before its own.
    """
    holders = _nearest_centres(rows[near.flatten()], centres, 1).view_as(near)
    places = _nearest_centres(rows[sample], centres, len(centres)).argsort(dim=1)
    before = places.gather(1, holders)
    counts = range(LEAST_PROBES, len(centres))
    return counts.start + bisect_left(counts, True, key=lambda count: _surely_found(before < count) >= RECALL)


def _surely_found(found: Tensor) -> float:
    """Lower bound on the share of neighbours that are ``found`` (S, k): by standard errors over the rows."""
    shares = found.double().mean(1)
    return float(shares.mean() - ERRORS * shares.std() / len(shares) ** 0.5)


def _rows_found(lists: _Lists, probed: Tensor, k: int, part: slice) -> Tensor:
    """Row numbers of the neighbours of some rows, which are searched list by list."""
    places, at = lists.numbers.argsort()[part].sort()
    found = _search(lists, places, probed[lists.numbers[places]], k).rows
    return torch.empty_like(found).index_copy_(0, at, lists.numbers[found])


def _placed(points: Tensor) -> Tensor:
    """The rows in float32, scaled, and centred by the median: a mean that outliers shift would cost digits."""
    rows = points / points.abs().max()
    rows = rows - rows[:: max(1, len(rows) // CENTRED)].median(0).values
    return (rows / rows.abs().max()).float()


def _centres(rows: Tensor) -> Tensor:
    """Centres of the lists, which Lloyd's algorithm finds on a part of the rows."""
    count = max(2, int(len(rows) / (LIST_ROWS * max(1.0, len(rows) / SIZED_FOR) ** 0.5)))
    trained = rows[:: max(1, len(rows) // (TRAINED * count))]
    chosen = torch.randperm(len(trained), generator=torch.Generator().manual_seed(0))[:count].to(rows.device)
    return lloyd(trained, trained[chosen], LLOYD_STEPS, 0.0).centres


def _make_lists(rows: Tensor, holders: Tensor, count: int) -> _Lists:
    """Sort the rows into ``count`` lists, each into that of its number in ``holders`` (N,)."""
    lists, numbers = holders.sort(stable=True)
    starts = torch.searchsorted(lists, torch.arange(count + 1, device=rows.device)).tolist()
    rows = rows[numbers]
    return _Lists(rows, rows.square().sum(1), numbers, starts)


def _nearest_centres(rows: Tensor, centres: Tensor, count: int) -> Tensor:
    """Numbers (N, count) of the nearest centres of each row."""
    squares = centres.square().sum(1)
    blocks = rows.split(max(1, _entries_at_once(rows) // len(centres)))
    return torch.cat([smallest(torch.addmm(squares, block, centres.T, alpha=-2.0), count)[1] for block in blocks])


def _search(lists: _Lists, asked: Tensor, probed: Tensor, k: int) -> Found:
    """Neighbours of the rows at the places ``asked`` (Q,) among the members of the lists ``probed`` (Q, p), as places.

    The first list of each is its nearest.
    """
    best = _Best(asked, k + SPARE, lists)
    for chosen in (probed[:, :1], probed[:, 1:]):  # what the nearest list has rules out most members of the others
        in_turn, order = chosen.flatten().sort(stable=True)
        bounds = torch.searchsorted(in_turn, torch.arange(len(lists.starts), device=asked.device)).tolist()
        for number, (start, stop) in enumerate(pairwise(bounds)):
            for queries in (order[start:stop] // chosen.shape[1]).split(QUERIES):
                best.compare(queries, number)
    found = best.sorted(k)
    lonely = found.distances[:, -1].isinf().nonzero().flatten()
    if len(lonely):
        own = asked[lonely]
        found.rows[lonely], found.distances[lonely] = NearestVectors(lists.rows).search(lists.rows[own], k, own)
    return found


def _entries_at_once(tensor: Tensor) -> int:
    return GPU_BLOCK_ENTRIES if tensor.is_cuda else BLOCK_ENTRIES


class _Best:
    """The nearest of all members of lists that each query was compared with, itself included until they are sorted."""

    def __init__(self, asked: Tensor, kept: int, lists: _Lists) -> None:
        self._lists, self._asked = lists, asked
        self._values = lists.squares.new_full((len(asked), kept), torch.inf)
        self._places = torch.zeros(len(asked), kept, dtype=torch.long, device=asked.device)

    def compare(self, queries: Tensor, number: int) -> None:
        """Compare some of the queries with the members of one list."""
        start, stop = self._lists.starts[number : number + 2]
        asked, members = self._lists.rows[self._asked[queries]], self._lists.rows[start:stop]
        rough = torch.addmm(self._lists.squares[start:stop], asked, members.T, alpha=-2.0)
        if not rough.is_cuda and rough.shape[1]:  # on a GPU, reading back which queries gain takes longer than topk
            gains = (rough.amin(1) < self._values[queries].amax(1)).nonzero().flatten()
            queries, rough = queries[gains], rough[gains]
        both = torch.cat([self._values[queries], rough], dim=1)
        values, columns = smallest(both, self._values.shape[1])
        fresh = columns - self._values.shape[1]
        earlier = self._places[queries].gather(1, columns.clamp_max(self._values.shape[1] - 1))
        self._values[queries] = values
        self._places[queries] = torch.where(fresh >= 0, fresh + start, earlier)

    def sorted(self, k: int) -> Found:
        """The ``k`` nearest by differences, infinitely far where there were too few members."""
        rows = self._lists.rows
        pieces = max(1, _entries_at_once(rows) // (self._places.shape[1] * rows.shape[1]))
        parts = zip(self._asked.split(pieces), self._places.split(pieces), strict=True)
        squares = [(rows[near] - rows[own][:, None, :]).square_().sum(2) for own, near in parts]
        missing = self._values.isinf() | (self._places == self._asked[:, None])
        distances = torch.cat(squares).sqrt_().masked_fill_(missing, torch.inf)
        return nearest_first(distances.double(), self._places, k)
