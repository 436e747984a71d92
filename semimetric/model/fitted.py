"""A fitted model with its training examples: it embeds new examples, finds their neighbours and predicts classes."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from semimetric.core.errors import InputError
from semimetric.data import Preprocess, apply_in_chunks
from semimetric.data.preprocess import Identity
from semimetric.data.schema import Schema
from semimetric.data.stored import Images, Inputs
from semimetric.encoders import encode
from semimetric.encoders.features import blended
from semimetric.encoders.photographs import PhotoTransform
from semimetric.graph import PRIOR, Posteriors, class_posteriors, graph_neighbors
from semimetric.metric import Metric
from semimetric.model.spec import ExampleNames, ModelSpec
from semimetric.model.unknown import Unknown
from semimetric.search import ExactIndex, Hits

GRAPH_NEIGHBORS = 10
"""Neighbours in the graph over the final embedding, and in a prediction."""

NEAREST_SHARE = 1e-3
"""Share of the mean squared distance that is added to each: it bounds the weight of the nearest examples."""

WIDEST_INPUT = 1 << 14
"""Numbers in an example, at most, for a run to keep the inputs of labelled examples."""

AT_ONCE = 1 << 13
"""Vectors that are embedded at a time."""

LARGEST_ARRAY = 1 << 24
"""Numbers in the largest array of a prediction."""


def scaled_vectors(preprocess: Preprocess, inputs: Tensor) -> Tensor:
    """Scaled inputs (N, ...) in float32; vectors that are not scaled keep their precision."""
    if inputs.ndim == 2 and isinstance(preprocess, Identity):
        return inputs
    return apply_in_chunks(preprocess, inputs)


def fits_in_a_row(inputs: Inputs) -> bool:
    """Whether an example has at most ``WIDEST_INPUT`` numbers."""
    return prod(inputs.shape[1:]) <= WIDEST_INPUT


def input_rows(scaled: Inputs) -> Tensor | None:
    """Scaled inputs (N, ...) as rows (N, d) in float32, on the CPU; None if a row is wider than ``WIDEST_INPUT``."""
    return scaled[:].flatten(1).float().cpu() if fits_in_a_row(scaled) else None


@dataclass(frozen=True)
class Model:
    """From inputs to embeddings: preprocessing, encoder and metric. Without an encoder the metric is of the inputs.

    With a ``frozen_share`` the scaled inputs, features of a frozen network, have that share in squared distances.
    """

    preprocess: Preprocess
    encoder: nn.Module | None
    metric: Metric
    transform: PhotoTransform | None = None
    frozen_share: float = 0.0

    @property
    def width(self) -> int:
        """Dimensions of an embedding; an encoder of frozen features keeps their number."""
        features, learned = self.metric.factor.shape
        return learned + (features if self.frozen_share else 0)

    @property
    def device(self) -> torch.device:
        """The device of the metric; encoder and preprocessing are there, too."""
        return self.metric.factor.device

    @cached_property
    def _precise_encoder(self) -> nn.Module:
        return copy.deepcopy(self.encoder).double()  # type: ignore[union-attr]

    def scaled(self, inputs: Inputs) -> Inputs:
        """What the encoder gets of unscaled inputs."""
        if isinstance(inputs, Images):
            return inputs.to(self.device).scaled_by(self.preprocess)
        return scaled_vectors(self.preprocess, inputs)

    def embed(self, inputs: Tensor) -> Tensor:
        """Embeddings (N, l) of unscaled inputs (N, ...), on the CPU, in float64."""
        return self.embed_scaled(scaled_vectors(self.preprocess, inputs))

    def embed_scaled(self, scaled: Inputs) -> Tensor:
        """As ``embed``, of scaled inputs; vectors piece by piece, which needs little more memory than the result.

        A network on vectors computes in float64. An embedding then does not depend on the rest of its batch.
        """
        if isinstance(scaled, Images) or scaled.ndim != 2 or len(scaled) <= AT_ONCE:
            embedded = self._embedded(scaled)
        else:
            pieces = map(self._embedded, scaled.split(AT_ONCE))
            first = next(pieces)
            embedded = first.new_empty(len(scaled), first.shape[1])
            for place, piece in zip(embedded.split(AT_ONCE), chain([first], pieces), strict=True):
                place.copy_(piece)
        _check_numbers(embedded)
        return embedded

    def _embedded(self, scaled: Inputs) -> Tensor:
        if isinstance(scaled, Images) or (scaled.ndim != 2 and self.encoder is not None):
            assert self.encoder is not None
            learned = self.metric.transform(encode(self.encoder, scaled))
        elif self.encoder is None:
            learned = self.metric.transform(scaled.to(self.device).double())
        else:
            learned = self.metric.transform(encode(self._precise_encoder, scaled.double()))
        if self.frozen_share:
            learned = blended(scaled[:].to(learned), learned, self.frozen_share)
        return learned.cpu().double()


def _check_numbers(embedded: Tensor) -> None:
    finite = torch.cat([torch.isfinite(piece).all(1) for piece in embedded.split(AT_ONCE)])
    if not bool(finite.all()):
        rows = (~finite).nonzero().flatten()
        raise InputError(
            f"{len(rows)} of {len(embedded)} embeddings are no numbers, the first of row {int(rows[0])}: its "
            "values are too far from those of the training. Look for marks of missing data, such as -3.4e38, and "
            "correct or remove those rows."
        )


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
    schema : how the columns of a table become inputs
    labelled_inputs : (n, d) float32, what the encoder gets of the n labelled examples, in a row each
        None if that is more than ``WIDEST_INPUT`` numbers an example.
    unknown : the score of being of no known class; None without such inputs, or with too few labels to judge it
    """

    model: Model
    spec: ModelSpec
    embeddings: Tensor
    labels: Tensor
    posteriors: Posteriors
    examples: ExampleNames = field(default_factory=ExampleNames)
    facts: dict[str, Any] = field(default_factory=dict)
    schema: Schema | None = None
    labelled_inputs: Tensor | None = None
    unknown: Unknown | None = None

    @cached_property
    def index(self) -> ExactIndex:
        """The training examples, for search."""
        return ExactIndex(self.embeddings)

    @cached_property
    def _learned_index(self) -> ExactIndex:
        return ExactIndex(self._learned(self.embeddings))

    def _learned(self, embeddings: Tensor) -> Tensor:
        """The learned part of embeddings: frozen features help to find new classes, but not to name known ones."""
        return embeddings[:, self.model.width - self.model.metric.factor.shape[1] :]

    def columns_of(self, numbers: Tensor) -> Tensor:
        """Places (n,) of class ``numbers`` (n,) among the posteriors and class names; -1 for other numbers."""
        classes = self.posteriors.classes
        if len(classes) == 0:
            return torch.full_like(numbers, -1)
        places = torch.searchsorted(classes, numbers).clamp_max(len(classes) - 1)
        return torch.where(classes[places] == numbers, places, -1)

    def nearest(self, queries: Tensor, k: int) -> Hits:
        """The ``k`` training examples nearest to each of the embeddings ``queries`` (Q, l)."""
        return self.index.search(queries, k)

    def check_predicts(self) -> None:
        """Refuse a prediction by a model that was fitted without labels."""
        if len(self.posteriors.classes) == 0:
            raise InputError("the model was fitted without labels, so it predicts no classes. Fit with a few labels.")

    def check_unknown(self) -> Unknown:
        """The score of being of no known class; a model without one is refused."""
        if self.unknown is None:
            raise InputError(
                "the model has no score of being of no known class. It needs at least two classes and 20 examples, and "
                f"inputs of at most {WIDEST_INPUT:,} numbers. Fit with more labels, or predict with risk 0."
            )
        return self.unknown

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
        rows, weights = self._neighbors(queries, k)
        return torch.einsum("qk,qkc->qc", weights, self.posteriors.shares[rows])

    def _neighbors(self, queries: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Rows (Q, k) of the nearest training examples, and their weights, which sum to 1."""
        hits = self._learned_index.search(self._learned(queries), k)
        distances = hits.distances.double()
        largest = distances.amax(1, keepdim=True)
        extreme = (largest > 1e150) | ((largest < 1e-150) & (largest > 0))  # their squares are no numbers any more
        squares = (distances / torch.where(extreme, largest, 1.0)).square()
        softened = squares + NEAREST_SHARE * squares.mean(1, keepdim=True)
        weights = torch.where(softened > 0, 1.0 / torch.where(softened > 0, softened, 1.0), 1.0)
        return hits.rows, weights / weights.sum(1, keepdim=True)

    def grown(
        self,
        names: Sequence[str],
        embeddings: Tensor,
        labels: Sequence[str | None],
        inputs: Tensor | None = None,
        digests: Sequence[str] = (),
    ) -> FittedModel:
        """The model with n more examples, without training.

        A label counts as given; a class that is new gets a number of its own. The posteriors of the others are those of
        ``probabilities``, and their confidence is the weighted mean of that of the same neighbours.

        Parameters
        ----------
        names : n names, none of them known
        embeddings : (n, l)
        labels : n classes by name; None is unlabelled
        inputs : (n, d) rows like ``labelled_inputs``
        digests : n of the rows of a table
        """
        classes, numbers = self._numbered(labels)
        found = self.posteriors
        rows, weights = self._neighbors(embeddings, min(GRAPH_NEIGHBORS, len(self.embeddings)))
        shares = torch.einsum("nk,nkc->nc", weights, found.shares[rows])
        confidence = (weights * found.confidence[rows]).sum(1)
        every = torch.cat([found.classes, found.classes.new_tensor([n for n in classes if n not in found.classes])])
        padded = nn.functional.pad(torch.cat([found.shares, shares]), (0, len(every) - len(found.classes)))
        more = Posteriors(every, padded, torch.cat([found.confidence, confidence]))
        given = torch.cat([self.labels, numbers])
        known = dataclasses.replace(
            self.examples,
            names=(*self.examples.names, *names),
            classes=tuple(classes[n] for n in every.tolist()),
            digests=(*self.examples.digests, *digests) if self.examples.digests else (),
        )
        together = torch.cat([self.embeddings, embeddings])
        known_inputs = self.labelled_inputs
        if known_inputs is not None:
            known_inputs = None if inputs is None else torch.cat([known_inputs, inputs[numbers >= 0]])
        return dataclasses.replace(
            self,
            embeddings=together,
            labels=given,
            posteriors=with_labels(more, given),
            examples=known,
            labelled_inputs=known_inputs,
            unknown=self.unknown if len(every) == len(found.classes) else None,
        )

    def _numbered(self, labels: Sequence[str | None]) -> tuple[dict[int, Any], Tensor]:
        """Classes by number, those of ``labels`` included, and the number of each label, -1 for none."""
        classes = dict(zip(self.posteriors.classes.tolist(), self.examples.classes, strict=True))
        by_text = {str(name): number for number, name in classes.items()}
        for label in sorted({label for label in labels if label is not None} - {*by_text}):
            if not all(isinstance(name, str) for name in classes.values()) or not classes:
                told = f"the classes are numbers, such as {next(iter(by_text))}" if classes else "it has no classes"
                raise InputError(
                    f"the label {label!r} is of no class of the run: {told}. Fit again with that label, or add the "
                    "example without it."
                )
            by_text[label] = max(classes) + 1
            classes[by_text[label]] = label
        return classes, torch.tensor([-1 if label is None else by_text[label] for label in labels], dtype=torch.int64)


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
    neighbors = graph_neighbors(embeddings.to(device), min(GRAPH_NEIGHBORS, len(embeddings) - 1))
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
