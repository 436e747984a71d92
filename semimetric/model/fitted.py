"""A model that has been learned, with the examples it was learned from: what embeds, finds and names new ones."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from semimetric.core.errors import InputError
from semimetric.data import Fit, Preprocess, PreprocessName, apply_in_chunks
from semimetric.data.preprocess import Identity
from semimetric.data.samples import Kind
from semimetric.encoders import encode
from semimetric.encoders.photographs import Sight
from semimetric.graph import PRIOR, Posteriors, class_posteriors, nearest_neighbors
from semimetric.metric import Metric
from semimetric.search import ExactIndex, Hits

GRAPH_NEIGHBORS = 10
"""Of the graph over the final embedding, for methods that name no classes themselves; as ``consensus`` has them."""

NEAREST_SHARE = 1e-3
"""Of the mean squared distance, added to each: how much the nearest examples may outweigh the others."""

LARGEST_ARRAY = 1 << 24
"""Numbers in the largest array while examples are named."""


def scaled_vectors(preprocess: Preprocess, inputs: Tensor) -> Tensor:
    """Scaled inputs (N, ...) in float32; vectors that are not scaled at all keep their precision."""
    if inputs.ndim == 2 and isinstance(preprocess, Identity):
        return inputs
    return apply_in_chunks(preprocess, inputs)


@dataclass(frozen=True)
class Model:
    """From inputs to embeddings: scaling, encoder and metric; without an encoder the metric is of the inputs."""

    preprocess: Preprocess
    encoder: nn.Module | None
    metric: Metric
    sight: Sight | None = None

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        return self.metric.factor.device

    @cached_property
    def _precise_encoder(self) -> nn.Module:
        return copy.deepcopy(self.encoder).double()  # type: ignore[union-attr]

    def embed(self, inputs: Tensor) -> Tensor:
        """Embeddings (N, l) of inputs (N, ...) that are not scaled yet, on the CPU, in float64."""
        return self.embed_scaled(scaled_vectors(self.preprocess, inputs))

    def embed_scaled(self, scaled: Tensor) -> Tensor:
        """As ``embed``, of inputs that are scaled already.

        Vectors are few numbers, and a network computes on them in float64: one embedding is then the same whatever
        others are computed beside it.
        """
        if self.encoder is None:
            features = scaled.to(self.device).double()
        elif scaled.ndim == 2:
            features = encode(self._precise_encoder, scaled.double())
        else:
            features = encode(self.encoder, scaled)
        return self.metric.transform(features).cpu().double()


@dataclass(frozen=True)
class Built:
    """What a model is built of, in words and numbers, so that it can be built again.

    ``kind`` and ``shape`` are of an example as it is given, ``inputs`` is the shape of what is scaled; ``encoder`` is a
    name, "none" for a metric of the inputs themselves, or empty where ``module`` names a class of the user's own;
    ``side`` and ``fit`` are of the square to which photographs are brought.
    """

    kind: Kind
    shape: tuple[int, ...]
    inputs: tuple[int, ...]
    preprocess: PreprocessName
    encoder: str
    module: str = ""
    backbone: str = ""
    side: int = 0
    fit: Fit = "crop"


@dataclass(frozen=True)
class Learned:
    """A model, and of its N examples the embeddings (N, l), labels (N,; -1 unknown) and posteriors."""

    model: Model
    built: Built
    embeddings: Tensor
    labels: Tensor
    posteriors: Posteriors
    facts: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def index(self) -> ExactIndex:
        """The examples, for search."""
        return ExactIndex(self.embeddings)

    def nearest(self, queries: Tensor, k: int) -> Hits:
        """The ``k`` examples nearest to each of the embeddings ``queries`` (Q, l)."""
        return self.index.search(queries, k)

    def check_named(self) -> None:
        """Refuse to name anything where no label was given."""
        if len(self.posteriors.classes) == 0:
            raise InputError("there are no labels, so that nothing can be named. Fit with a few labels.")

    def name(self, queries: Tensor, k: int = GRAPH_NEIGHBORS) -> Tensor:
        """Class probabilities (Q, C) of embeddings (Q, l): those of the nearest examples, the nearer the more.

        Weights are 1 / (d^2 + s / 1000) with s the mean squared distance of the k nearest: a copy of an example is
        named as that example is, however few others of its class there are.
        """
        self.check_named()
        k = min(k, len(self.embeddings))
        few = max(1, LARGEST_ARRAY // (k * len(self.posteriors.classes)))
        return torch.cat([self._name(some, k) for some in queries.split(few)])

    def _name(self, queries: Tensor, k: int) -> Tensor:
        hits = self.nearest(queries, k)
        squares = hits.distances.double().square()
        softened = squares + NEAREST_SHARE * squares.mean(1, keepdim=True)
        weights = torch.where(softened > 0, 1.0 / torch.where(softened > 0, softened, 1.0), 1.0)
        weights = weights / weights.sum(1, keepdim=True)
        return torch.einsum("qk,qkc->qc", weights, self.posteriors.shares[hits.rows])


def posteriors_of(embeddings: Tensor, labels: Tensor) -> Posteriors:
    """What labels say of all examples when they are propagated over the neighbour graph of an embedding.

    With one class all are of it, with none there is nothing to say.
    """
    classes = torch.unique(labels[labels >= 0])
    if len(classes) < 2:
        shares = torch.ones(len(labels), len(classes), dtype=torch.float64)
        return Posteriors(classes, shares, torch.full((len(labels),), float(len(classes)), dtype=torch.float64))
    if bool((embeddings == embeddings[0]).all()):
        shares = torch.full((len(labels), len(classes)), 1 / len(classes), dtype=torch.float64)
        return with_labels(Posteriors(classes, shares, torch.zeros(len(labels), dtype=torch.float64)), labels)
    neighbors = nearest_neighbors(embeddings, min(GRAPH_NEIGHBORS, len(embeddings) - 1))
    return with_labels(class_posteriors(neighbors, labels, prior=PRIOR), labels)


def with_labels(found: Posteriors, labels: Tensor) -> Posteriors:
    """The posteriors, certain where the label is known."""
    known = labels >= 0
    certain = (labels[:, None] == found.classes).double()
    shares = torch.where(known[:, None], certain, found.shares.double())
    return Posteriors(found.classes, shares, torch.where(known, 1.0, found.confidence.double()))
