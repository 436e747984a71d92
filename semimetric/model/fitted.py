"""A fitted model with its training examples: it embeds new examples, finds their neighbours and predicts classes."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from semimetric.core.errors import InputError
from semimetric.data import Preprocess, apply_in_chunks
from semimetric.data.preprocess import Identity
from semimetric.encoders import encode
from semimetric.encoders.photographs import PhotoTransform
from semimetric.graph import PRIOR, Posteriors, class_posteriors, nearest_neighbors
from semimetric.metric import Metric
from semimetric.model.spec import ExampleNames, ModelSpec
from semimetric.search import ExactIndex, Hits

GRAPH_NEIGHBORS = 10
"""Neighbours in the graph over the final embedding, and in a prediction."""

NEAREST_SHARE = 1e-3
"""Share of the mean squared distance that is added to each: it bounds the weight of the nearest examples."""

LARGEST_ARRAY = 1 << 24
"""Numbers in the largest array of a prediction."""


def scaled_vectors(preprocess: Preprocess, inputs: Tensor) -> Tensor:
    """Scaled inputs (N, ...) in float32; vectors that are not scaled keep their precision."""
    if inputs.ndim == 2 and isinstance(preprocess, Identity):
        return inputs
    return apply_in_chunks(preprocess, inputs)


@dataclass(frozen=True)
class Model:
    """From inputs to embeddings: preprocessing, encoder and metric. Without an encoder the metric is of the inputs."""

    preprocess: Preprocess
    encoder: nn.Module | None
    metric: Metric
    transform: PhotoTransform | None = None

    @property
    def device(self) -> torch.device:
        """The device of the metric; encoder and preprocessing are there, too."""
        return self.metric.factor.device

    @cached_property
    def _precise_encoder(self) -> nn.Module:
        return copy.deepcopy(self.encoder).double()  # type: ignore[union-attr]

    def embed(self, inputs: Tensor) -> Tensor:
        """Embeddings (N, l) of unscaled inputs (N, ...), on the CPU, in float64."""
        return self.embed_scaled(scaled_vectors(self.preprocess, inputs))

    def embed_scaled(self, scaled: Tensor) -> Tensor:
        """As ``embed``, of scaled inputs.

        A network on vectors computes in float64. An embedding then does not depend on the rest of its batch.
        """
        if self.encoder is None:
            features = scaled.to(self.device).double()
        elif scaled.ndim == 2:
            features = encode(self._precise_encoder, scaled.double())
        else:
            features = encode(self.encoder, scaled)
        return self.metric.transform(features).cpu().double()


@dataclass(frozen=True)
class FittedModel:
    """A model with its N training examples.

    Parameters
    ----------
    model, spec : the model, and what it is built of
    embeddings : (N, l) of the training examples
    labels : (N,) class numbers, -1 where unlabelled
    posteriors : class probabilities (N, C) and confidence (N,) of the training examples
    examples : names of examples and classes
    facts : what is known of the training, as in ``result.json``
    """

    model: Model
    spec: ModelSpec
    embeddings: Tensor
    labels: Tensor
    posteriors: Posteriors
    examples: ExampleNames = field(default_factory=ExampleNames)
    facts: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def index(self) -> ExactIndex:
        """The training examples, for search."""
        return ExactIndex(self.embeddings)

    def nearest(self, queries: Tensor, k: int) -> Hits:
        """The ``k`` training examples nearest to each of the embeddings ``queries`` (Q, l)."""
        return self.index.search(queries, k)

    def check_predicts(self) -> None:
        """Refuse a prediction by a model that was fitted without labels."""
        if len(self.posteriors.classes) == 0:
            raise InputError("the model was fitted without labels, so it predicts no classes. Fit with a few labels.")

    def probabilities(self, queries: Tensor, k: int = GRAPH_NEIGHBORS) -> Tensor:
        """Class probabilities (Q, C) of embeddings (Q, l): a weighted mean over the k nearest training examples.

        Weights are 1 / (d^2 + s / 1000) with s the mean squared distance of the k nearest. A copy of an example gets
        the prediction of that example, even if its class is small.
        """
        self.check_predicts()
        k = min(k, len(self.embeddings))
        few = max(1, LARGEST_ARRAY // (k * len(self.posteriors.classes)))
        return torch.cat([self._probabilities(some, k) for some in queries.split(few)])

    def _probabilities(self, queries: Tensor, k: int) -> Tensor:
        hits = self.nearest(queries, k)
        squares = hits.distances.double().square()
        softened = squares + NEAREST_SHARE * squares.mean(1, keepdim=True)
        weights = torch.where(softened > 0, 1.0 / torch.where(softened > 0, softened, 1.0), 1.0)
        weights = weights / weights.sum(1, keepdim=True)
        return torch.einsum("qk,qkc->qc", weights, self.posteriors.shares[hits.rows])


def posteriors_of(embeddings: Tensor, labels: Tensor, device: torch.device | str = "cpu") -> Posteriors:
    """Labels (N,) propagated over the kNN graph of embeddings (N, l), computed on ``device``.

    With one class every example is of it. Without labels there are no classes.
    """
    classes = torch.unique(labels[labels >= 0])
    if len(classes) < 2:
        shares = torch.ones(len(labels), len(classes), dtype=torch.float64)
        return Posteriors(classes, shares, torch.full((len(labels),), float(len(classes)), dtype=torch.float64))
    if bool((embeddings == embeddings[0]).all()):
        shares = torch.full((len(labels), len(classes)), 1 / len(classes), dtype=torch.float64)
        return with_labels(Posteriors(classes, shares, torch.zeros(len(labels), dtype=torch.float64)), labels)
    neighbors = nearest_neighbors(embeddings.to(device), min(GRAPH_NEIGHBORS, len(embeddings) - 1))
    return with_labels(on_cpu(class_posteriors(neighbors, labels, prior=PRIOR)), labels)


def on_cpu(found: Posteriors) -> Posteriors:
    """The same posteriors, on the CPU."""
    return Posteriors(*(tensor.cpu() for tensor in found))


def with_labels(found: Posteriors, labels: Tensor) -> Posteriors:
    """The posteriors, with certainty where the label is known."""
    known = labels >= 0
    certain = (labels[:, None] == found.classes).double()
    shares = torch.where(known[:, None], certain, found.shares.double())
    return Posteriors(found.classes, shares, torch.where(known, 1.0, found.confidence.double()))
