"""Embeddings on a plane: t-SNE or UMAP of a stratified sample; every other example lies beside its nearest of these."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from importlib.util import find_spec
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from semimetric.core.checks import check_positive
from semimetric.core.extras import import_extra
from semimetric.search import ExactIndex

SAMPLE = 2000
"""Examples that t-SNE or UMAP places at most."""

Way = Literal["auto", "tsne", "umap"]
"""How examples are placed; "auto" is UMAP where it is installed."""

PERPLEXITY, ITERATIONS = 30.0, 500
PLACES = 5  # sampled neighbours between which an example is placed
UMAP_NEIGHBORS = 15
WIDTH = 50  # principal components that t-SNE and UMAP see


class Map(NamedTuple):
    """Points (n, 2) in [-1, 1] of the examples ``rows`` (n,), and in words how they were placed."""

    rows: Tensor
    points: Tensor
    made: str


def stratified_sample(groups: Tensor, count: int, seed: int = 0) -> Tensor:
    """Rows (n,) in ascending order: at most ``count``, of every group (N,) its share and at least one.

    Parameters
    ----------
    groups : (N,) group numbers, such as predicted classes
    count : largest sample; with more groups than this, one of each
    seed : of the draw
    """
    check_positive(count, "count")
    if len(groups) <= count:
        return torch.arange(len(groups))
    shuffled = torch.randperm(len(groups), generator=torch.Generator().manual_seed(seed))
    ordered = shuffled[groups[shuffled].argsort(stable=True)]
    _, counts = groups[ordered].unique_consecutive(return_counts=True)
    quotas = (counts * max(0, count - len(counts)) // len(groups)).clamp_min(0) + 1
    ranks = torch.cat([torch.arange(int(size)) for size in counts])
    return ordered[ranks < quotas.repeat_interleave(counts)].sort().values


def sample_map(embeddings: Tensor, groups: Tensor, count: int = SAMPLE, seed: int = 0, way: Way = "tsne") -> Map:
    """A map of a stratified sample.

    Parameters
    ----------
    embeddings : (N, l)
    groups : (N,) by which the sample is stratified
    count, seed : of the sample
    way : how the sample is placed
    """
    rows = stratified_sample(groups, count, seed)
    by_umap = way == "umap" or (way == "auto" and find_spec("umap") is not None)
    points = _scaled(_placed(embeddings[rows], seed, _umap if by_umap else _tsne))
    which = f"all {len(rows):,}" if len(rows) == len(embeddings) else f"{len(rows):,} of {len(embeddings):,}"
    how = "" if len(rows) == len(embeddings) else ", drawn by predicted class"
    return Map(rows, points, f"{'UMAP' if by_umap else 't-SNE'} of {which} examples{how}")


def full_map(embeddings: Tensor, groups: Tensor, count: int = SAMPLE, seed: int = 0) -> Map:
    """A map of all examples: those outside of the sample lie between the sampled ones that are nearest.

    Parameters
    ----------
    embeddings, groups, count, seed : as for ``sample_map``
    """
    sampled = sample_map(embeddings, groups, count, seed)
    everyone = torch.arange(len(embeddings))
    if len(sampled.rows) == len(embeddings):
        return sampled
    points = torch.empty(len(embeddings), 2, dtype=sampled.points.dtype)
    hits = ExactIndex(embeddings[sampled.rows].float()).search(embeddings.float(), PLACES)
    weights = 1.0 / (hits.distances + hits.distances.mean(1, keepdim=True) * 1e-3 + 1e-12)
    weights = (weights / weights.sum(1, keepdim=True)).to(points)
    points = torch.einsum("nk,nkd->nd", weights, sampled.points[hits.rows])
    generator = torch.Generator().manual_seed(seed)
    points += 0.004 * torch.randn(len(points), 2, generator=generator, dtype=points.dtype)
    points[sampled.rows] = sampled.points
    rest = "; the others lie between the five nearest of these"
    return Map(everyone, points.clamp(-1.0, 1.0), sampled.made + rest)


def _placed(embeddings: Tensor, seed: int, place: Callable[[Tensor, Tensor, int], Tensor]) -> Tensor:
    """(n, 2) from the principal components; of fewer than five different examples, those components alone."""
    from threadpoolctl import threadpool_limits

    points = torch.zeros(len(embeddings), 2)
    components = _principal_components(embeddings, WIDTH)
    start = components[:, :2]
    spread = float(start.std())
    if len(components) >= 5 and spread > 0:
        points[:, : start.shape[1]] = start / spread
        with threadpool_limits(1):
            return place(components, points, seed)
    points[:, : start.shape[1]] = start
    return points


def _tsne(components: Tensor, start: Tensor, seed: int) -> Tensor:
    from sklearn.manifold import TSNE

    perplexity = min(PERPLEXITY, (len(components) - 1) / 3)
    begun = (1e-4 * start).numpy()
    method = TSNE(2, init=begun, perplexity=perplexity, random_state=seed, max_iter=ITERATIONS)
    return torch.from_numpy(method.fit_transform(components.numpy()))


def _umap(components: Tensor, start: Tensor, seed: int) -> Tensor:
    near = min(UMAP_NEIGHBORS, len(components) - 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of packages that UMAP could use and does not need
        umap = import_extra("umap", "umap", "a map by UMAP")
        method = umap.UMAP(n_neighbors=near, init=(5.0 * start).numpy(), random_state=seed, n_jobs=1)
        return torch.from_numpy(method.fit_transform(components.numpy()))


OVERFLOWING = 1e100
"""Numbers whose squares, summed over many, might not be finite."""


def _principal_components(embeddings: Tensor, width: int) -> Tensor:
    """Coordinates (n, at most ``width``) in the directions of the largest variance, in float32 on the CPU."""
    points = embeddings.double().cpu()
    largest = points.abs().max()
    if largest > OVERFLOWING:
        points = points / largest
    centred = points - points.mean(0)
    directions = torch.linalg.eigh(centred.T @ centred).eigenvectors.flip(1)[:, :width]
    components: Tensor = (centred @ directions).float()
    return components


def _scaled(points: Tensor) -> Tensor:
    """Centred points whose farthest coordinate is 0.98."""
    middle = (points.amax(0) + points.amin(0)) / 2
    centred = points - middle
    return centred * (0.98 / centred.abs().max().clamp_min(1e-12))
