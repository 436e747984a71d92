"""Base of the pair methods: labelled examples, weighted pairs of examples, and a full matrix M."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, Self, TypeVar

import torch
from torch import Tensor

from semimetric.core.errors import InputError
from semimetric.core.settings import setting
from semimetric.core.space import Space
from semimetric.methods.base import Constraints, Examples, LearnsMetric, shuffled_batches
from semimetric.methods.defaults import SLOW, Values, on_photographs
from semimetric.methods.starts import random_projection
from semimetric.metric import Metric, PairScatters, Span, pair_scatters, weighted_energy, weighted_scatter

FLAT_VARIANCE = 1e-12  # directions with less than this share of the largest variance count as flat


@dataclass(frozen=True)
class Pairs:
    """Labelled examples, which define similar and dissimilar pairs, and weighted pairs of any examples.

    Positions refer to ``nodes``. The difference of a weighted pair is v = s_0 z_i - s_1 z_j with its ``scales``.
    """

    nodes: Tensor
    labelled: Tensor  # (n,)
    classes: Tensor  # (n,) of ``labelled``
    pairs: Tensor  # (P, 2) such as the edges of a graph
    weights: Tensor  # (P,) of mean magnitude 1
    scales: Tensor  # (P, 2) 1 unless the graph's Laplacian is normalised or signed

    @classmethod
    def of_working_set(
        cls, labels: Tensor, pairs: Tensor, weights: Tensor | None = None, scales: Tensor | None = None
    ) -> Self:
        """Constraints of a whole working set with these ``labels`` (-1 = unknown)."""
        labelled = (labels >= 0).nonzero().flatten()
        weights = torch.ones(len(pairs), dtype=torch.float64, device=labels.device) if weights is None else weights
        size = weights.abs().mean() if len(weights) else weights.sum()
        return cls(
            torch.arange(len(labels), device=labels.device),
            labelled,
            labels[labelled],
            pairs,
            weights / size.clamp_min(torch.finfo(weights.dtype).tiny),
            torch.ones(len(pairs), 2, dtype=weights.dtype, device=labels.device) if scales is None else scales,
        )

    def __len__(self) -> int:
        return len(self.pairs)

    def minibatches(self, size: int, generator: torch.Generator) -> Iterator[Self]:
        """Shuffled batches of ``size`` pairs and ``size`` labelled examples, or all of these if they are fewer.

        Each end of a pair is a separate node, so that all batches of an epoch have the same shape.
        """
        order = shuffled_batches(len(self), size, generator).to(self.pairs.device)
        count = min(size, len(self.labelled))
        labelled = cycled(self.classes, generator)
        for number, chosen in enumerate(order):
            known = labelled[torch.arange(number * count, (number + 1) * count, device=order.device) % len(labelled)]
            yield self._batch(chosen, known)

    def _batch(self, chosen: Tensor, known: Tensor) -> Self:
        ends = torch.arange(2 * len(chosen), device=chosen.device).reshape(-1, 2)
        return dataclasses.replace(
            self,
            nodes=torch.cat([self.nodes[self.labelled[known]], self.nodes[self.pairs[chosen]].flatten()]),
            labelled=torch.arange(len(known), device=chosen.device),
            classes=self.classes[known],
            pairs=len(known) + ends,
            weights=self.weights[chosen],
            scales=self.scales[chosen],
        )

    def quality(self, classes: Tensor) -> dict[str, float]:
        """Share of the pairs with equal true classes."""
        if len(self) == 0:
            return {}
        true = classes[self.nodes[self.pairs].to(classes.device)]
        return {"same_class_pairs": float((true[:, 0] == true[:, 1]).double().mean())}

    def form(self, features: Tensor) -> Tensor:
        """(d, d) mean over the pairs of w v v^T in float64: Z^T Lap Z of the graph, divided by its number of edges."""
        return weighted_scatter(features.double(), self.pairs, self.weights, self.scales) / max(1, len(self))

    def energy(self, embeddings: Tensor) -> Tensor:
        """The trace of ``form``: the weighted mean squared length of the pairs, differentiable."""
        return weighted_energy(embeddings, self.pairs, self.weights, self.scales) / max(1, len(self))


def cycled(classes: Tensor, generator: torch.Generator) -> Tensor:
    """A random order that alternates between classes, two examples at a time, so that batches have similar pairs."""
    shuffled = torch.randperm(len(classes), generator=generator)
    labels = classes.cpu()[shuffled]
    by_class = labels.argsort(stable=True)
    _, counts = labels[by_class].unique_consecutive(return_counts=True)
    starts = (counts.cumsum(0) - counts).repeat_interleave(counts)
    rank = torch.empty_like(labels)
    rank[by_class] = torch.arange(len(labels)) - starts
    class_turn = torch.empty_like(labels)
    class_turn[by_class] = torch.randperm(len(counts), generator=generator).repeat_interleave(counts)
    order = ((rank // 2) * len(counts) + class_turn).argsort(stable=True)
    return shuffled[order].to(classes.device)


class PairConstraints(Constraints, Protocol):
    """Constraints of a pair method, of a working set or of a batch."""

    @property
    def labelled(self) -> Tensor:
        """(n,) positions of the labelled examples."""

    @property
    def classes(self) -> Tensor:
        """(n,) classes of the labelled examples."""

    def form(self, features: Tensor) -> Tensor:
        """(d, d) quadratic form of the unlabelled term, in float64."""

    def energy(self, embeddings: Tensor) -> Tensor:
        """The unlabelled term of the loss of embeddings, differentiable."""


P = TypeVar("P", bound=PairConstraints)


@dataclass(frozen=True)
class PairSettings:
    """Hyper-parameters of every pair method."""

    components: int = setting(0, "Dimensions l of the learned embedding, at most the encoder's d; 0 keeps all d.")

    def __post_init__(self) -> None:
        if self.components < 0:
            raise InputError(f"components must be at least 1, or 0 to keep all dimensions, got {self.components}.")


def with_rates(digits: float, mnist: float, fashion_mnist: float, cifar10: float) -> dict[str, Values]:
    """Defaults by dataset with these learning rates; on large datasets the best epochs are among the first thirty.

    On photographs the encoder is frozen, and a second epoch would learn the same metric again.
    """
    large = {"mnist": mnist, "fashion-mnist": fashion_mnist, "cifar10": cifar10}
    once = on_photographs({"lr": 0.0, "epochs": 1})
    return {"digits": {"lr": digits}} | {dataset: {"lr": lr, "epochs": 30} for dataset, lr in large.items()} | once


class PairMethod(LearnsMetric[P]):
    """A method that learns a full positive semi-definite M; ``components`` keeps its largest eigenvectors."""

    in_paper = True
    space: ClassVar[Space] = SLOW
    Settings: ClassVar[type[Any]] = PairSettings
    settings: PairSettings
    capturable_loss = True

    def initial_metric(self, width: int, generator: torch.Generator, examples: Examples | None = None) -> Metric:
        """Euclidean distance, after a random projection if ``components`` is set."""
        keep_all = "Ask for fewer components, or for 0 to keep all."
        return random_projection(width, self.settings.components, generator, keep_all)

    def _metric(self, matrix: Tensor, features: Tensor, span: Span | None = None, rest: float = 0.0) -> Metric:
        """M, or its largest ``components`` eigenvectors within the span of the features; examples differ only there.

        With a ``span``, ``matrix`` and ``features`` are in its coordinates; outside M is ``rest`` times the identity.
        """
        width, kept = len(matrix) if span is None else len(span.inside), self.settings.components
        values, vectors = torch.linalg.eigh(torch.cov(features.double().T).reshape(len(matrix), len(matrix)))
        seen = vectors[:, values > FLAT_VARIANCE * values[-1]]
        if seen.shape[1] < width:
            self.bind_guard(
                "low_rank",
                f"{self.name}: the examples differ along {seen.shape[1]} of {width} directions only; along the "
                "others the metric is not determined by the data.",
            )
        if kept:
            onto = seen @ seen.T
            matrix, rest = onto @ matrix @ onto, 0.0
        learned = Metric.from_matrix((matrix + matrix.T) / 2, min(kept, len(matrix)) or None)
        return learned if span is None else span.lifted(learned, rest, kept or width)

    def _scatters(self, features: Tensor, constraints: P) -> PairScatters:
        """Scatters of the labelled pairs in float64; warns if no two examples share a class."""
        scatters = pair_scatters(features[constraints.labelled].double(), constraints.classes)
        if scatters.similar_pairs == 0:
            self.bind_guard(
                "no_similar_pair",
                f"{self.name}: no class has two labelled examples, so there is no similar pair. Label at least two "
                "examples of some classes.",
            )
        return scatters

    def statistics(self, metric: Metric, features: Tensor, constraints: P) -> dict[str, float]:
        """Mean squared distances of labelled pairs under the metric, and the metric's trace and rank."""
        scatters = pair_scatters(metric.transform(features[constraints.labelled]), constraints.classes)
        values = metric.eigenvalues()
        return {
            "pairs": float(len(constraints)),
            "similar_distance": float(scatters.similar.trace()),
            "dissimilar_distance": float(scatters.dissimilar.trace()),
            "metric_trace": float(values.sum()),
            "metric_rank": float((values > 1e-6 * values.max()).sum()),
        }
