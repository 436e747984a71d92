"""What all estimators share: fit, transform, kneighbors, predict and score."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from math import prod
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.metrics import accuracy_score
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_consistent_length, check_is_fitted, validate_data
from torch import Tensor

from semimetric.core.checks import refuse_masked
from semimetric.core.errors import InputError
from semimetric.data.columns import RawColumn
from semimetric.data.frames import (
    ColumnWarning,
    encode_array,
    encode_frame,
    fit_frame,
    frame_columns,
    is_frame,
    needs_schema,
)
from semimetric.data.labels import UNLABELLED, as_array, is_labelled, number_labels, suggested_rows
from semimetric.data.samples import Samples, images, is_paths, photographs, vectors
from semimetric.data.schema import Schema
from semimetric.data.stored import Inputs
from semimetric.model.fitted import FittedModel, input_rows
from semimetric.model.spec import ExampleNames
from semimetric.pipeline.data import FitData, read_samples
from semimetric.pipeline.descriptors import photo_transform
from semimetric.pipeline.fit import fit
from semimetric.pipeline.plan import Plan
from semimetric.pipeline.warm import read_start
from semimetric.reporting.notebook import small_map
from semimetric.serve.evaluate import Evaluation, evaluate_examples
from semimetric.training import Silent

Array = NDArray[Any]


class MetricEstimator(ClassNamePrefixFeaturesOutMixin, ClassifierMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Base of all estimators.

    Attributes
    ----------
    classes_ : (C,) array
        The classes that have labels.
    embedding_ : (N, l) array
        Embedding of the training examples.
    label_distributions_ : (N, C) array
        Class probabilities of the training examples; certain where the label is known.
    confidence_ : (N,) array
        Confidence in these, from 0 to 1.
    plan_ : Plan
        All settings in force.
    fitted_ : FittedModel
        The fitted model with its training examples.
    """

    fitted_: FittedModel
    plan_: Plan
    classes_: Array
    n_features_in_: int

    def fit(self, X: Any, y: Any = None, *, from_run: Path | str | None = None, suggested: Any = ()) -> Self:
        """Fit to examples and labels.

        Parameters
        ----------
        X : (N, d) matrix, DataFrame of numbers, categories and text, images (N, C, H, W), (N, H, W, C) or (N, H, W), or
            N paths of photographs
        y : (N,) labels; -1, NaN, None and "" mean unlabelled
        from_run : folder of a run with the same method and network, to start from after labels or examples were added;
            an eighth of the epochs is trained, unless ``epochs`` is set
        suggested : row numbers of labelled examples that ``suggest`` had chosen; others judge the pseudo-labels
        """
        if y is None and self._needs_labels():
            raise InputError(
                f"{type(self).__name__} requires y to be passed, but the target y is None. Give a label for a few "
                "examples and -1 for the others."
            )
        start = None if from_run is None else read_start(Path(from_run))
        samples = self._samples(X, reset=True, schema=None if start is None else start.schema)
        y = np.full(len(samples), -1) if y is None else y
        check_consistent_length(samples.values, y)
        classes, labels = number_labels(y)
        if len(samples) < 2:
            raise InputError(f"X has n_samples = {len(samples)}, and there is nothing to compare. Give at least 2.")
        device = self._device()
        plan = self._plan(samples, labels, device)
        if start is not None:
            plan = start.shortened(plan, [name for name in ("epochs",) if getattr(self, name, None) is not None])
        transform = photo_transform(plan.network, plan.seed) if plan.network.side else None
        progress = self._progress()
        inputs = read_samples(samples, transform, device, progress)
        names = ExampleNames(classes=tuple(classes), suggested=suggested_rows(suggested, labels))
        data = FitData(samples.kind, samples.shape(), inputs, labels, names, transform, schema=samples.schema)
        fitted = fit(plan, data, device, progress=progress, start=start)
        if fitted.facts.get("interrupted"):
            raise KeyboardInterrupt
        self.adopt(fitted, classes, plan)
        return self

    def adopt(self, fitted: FittedModel, classes: Array, plan: Plan) -> None:
        """Take over a fitted model."""
        self.classes_ = classes
        self.fitted_ = fitted
        self.plan_ = plan
        self.n_iter_ = max(1, fitted.facts.get("epochs", 1))
        self.embedding_ = fitted.embeddings.numpy().copy()
        self.label_distributions_ = fitted.posteriors.shares.numpy()
        self.confidence_ = fitted.posteriors.confidence.numpy()

    @abstractmethod
    def _plan(self, samples: Samples, labels: Tensor, device: torch.device) -> Plan:
        """All settings of a fit on these samples."""

    @abstractmethod
    def _device(self) -> torch.device:
        """Where to fit."""

    def _progress(self) -> Silent:
        """Who is told how far a fit is."""
        return Silent()

    def _needs_labels(self) -> bool:
        return True

    def transform(self, X: Any) -> Array:
        """Embeddings (M, l) of examples ``X`` of the kind that was fitted."""
        check_is_fitted(self)
        embedded: Array = self._embed(self._samples(X, reset=False)).numpy()
        return embedded

    def kneighbors(self, X: Any = None, n_neighbors: int = 5, return_distance: bool = True) -> Any:
        """Distances (M, k) and row numbers (M, k) of the training examples nearest to each of ``X``.

        Without ``X``: of the nearest other training examples of each training example.
        """
        check_is_fitted(self)
        others = len(self.embedding_) - (X is None)
        if not 1 <= n_neighbors <= others:
            raise InputError(f"n_neighbors must be from 1 to {others}, the number of examples, got {n_neighbors}.")
        if X is None:
            distances, rows = self._without_themselves(n_neighbors)
        else:
            hits = self.fitted_.nearest(self._embed(self._samples(X, reset=False)), n_neighbors)
            distances, rows = np.asarray(hits.distances), np.asarray(hits.rows)
        return (distances, rows) if return_distance else rows

    def _without_themselves(self, count: int) -> tuple[Array, Array]:
        hits = self.fitted_.nearest(self.fitted_.embeddings, count + 1)
        rows, distances = np.asarray(hits.rows), np.asarray(hits.distances)
        own = rows == np.arange(len(rows))[:, None]
        own[~own.any(1), -1] = True  # among many duplicates an example may not be its own neighbour
        return distances[~own].reshape(len(rows), count), rows[~own].reshape(len(rows), count)

    def predict_proba(self, X: Any) -> Array:
        """Class probabilities (M, C), from the nearest training examples."""
        check_is_fitted(self)
        shares: Array = self.fitted_.probabilities(self._embed(self._samples(X, reset=False))).numpy()
        return shares

    def predict(self, X: Any, risk: float = 0.0) -> Array:
        """The likeliest class (M,) of each example.

        Parameters
        ----------
        X : examples of the kind that was fitted
        risk : share of the examples of known classes that may lose their name so that examples of no known class get
            none; 0 names all. An example without a name is "", -1 or NaN, as the classes are text, whole or other
            numbers.
        """
        shares = self.predict_proba(X)
        named: Array = self.classes_[shares.argmax(1)]
        if risk == 0:
            return named
        nothing = {"U": "", "O": "", "f": np.nan}.get(self.classes_.dtype.kind, UNLABELLED)
        if nothing in self.classes_:
            raise InputError(f"risk is {risk}, but {nothing!r} is a class and cannot stand for none. Leave risk out.")
        threshold = self.fitted_.check_unknown().threshold(risk)
        return np.where(self.unknown_score(X) > threshold, np.array(nothing, dtype=named.dtype), named)

    def unknown_score(self, X: Any) -> Array:
        """Probability (M,) that an example is of no known class, if half of all examples were.

        It is calibrated on held-out labels, by leaving one class after another out.
        """
        check_is_fitted(self)
        score = self.fitted_.check_unknown()
        rows = input_rows(self._scaled(self._samples(X, reset=False)))
        assert rows is not None
        found: Array = score.scores(rows).numpy()
        return found

    def evaluate(self, X: Any, y: Any, names: Any = None) -> Evaluation:
        """All scores on examples ``X`` with labels ``y``, beside what the inputs alone can do.

        Parameters
        ----------
        X : examples of the kind that was fitted
        y : (M,) labels; -1, NaN, None and "" mean unlabelled
        names : (M,) names of the examples, for the list of mistakes; by default their numbers

        Returns
        -------
        Evaluation
            Accuracy, retrieval and calibration; confusion; mistakes. ``semimetric evaluate`` prints the same. A model
            that was fitted without labels has scores of retrieval and clusters alone.
        """
        check_is_fitted(self)
        samples = self._samples(X, reset=False)
        known = self._labelled(y)
        check_consistent_length(samples.values, known)
        labels = [label if there else None for label, there in zip(as_array(y).tolist(), known, strict=True)]
        names = [str(name) for name in (range(len(samples)) if names is None else names)]
        check_consistent_length(samples.values, names)
        fitted, scaled = self.fitted_, self._scaled(samples)
        return evaluate_examples(fitted, fitted.model.embed_scaled(scaled), input_rows(scaled), labels, names)

    def _labelled(self, y: Any) -> Array:
        """Which entries (M,) of ``y`` have a label; all of them if -1 is a class."""
        binary = self.classes_.dtype.kind in "iuf" and UNLABELLED in self.classes_
        return np.ones(len(y), dtype=bool) if binary else is_labelled(y)

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Accuracy of ``predict`` on the examples that have a label."""
        check_is_fitted(self)
        known = self._labelled(y)
        if not known.any():
            raise InputError("y holds no label to score by. Give labels of some examples.")
        named = self.predict(X)
        check_consistent_length(named, known)
        wanted = as_array(y)[known]
        wanted = wanted.astype(str) if self.classes_.dtype.kind == "U" else np.asarray(wanted.tolist())
        weights = None if sample_weight is None else np.asarray(sample_weight)[known]
        return float(accuracy_score(wanted, named[known], sample_weight=weights))

    def _samples(self, X: Any, reset: bool, schema: Schema | None = None) -> Samples:
        """``X`` as paths, images, or a matrix that scikit-learn checks; ``schema`` is that of a run to start from."""
        refuse_masked(X, "X")
        if is_paths(X):
            return self._counted(photographs(X), 1, reset)
        if _dimensions(X) >= 3:
            samples = images(X)
            return self._counted(samples, prod(samples.shape()), reset)
        schema = schema if reset else self.fitted_.schema
        if is_frame(X):
            raw = frame_columns(X)
            if needs_schema(raw) if reset and schema is None else schema is not None and schema.named:
                return self._encoded(raw, len(X), schema, reset)
        matrix = X.detach().cpu().numpy() if isinstance(X, Tensor) else X
        if schema is not None and schema.encodes:
            samples = Samples("vectors", torch.from_numpy(encode_array(schema, matrix)), schema)
            return self._counted(samples, schema.places, reset)
        return vectors(validate_data(self, matrix, reset=reset, dtype=np.float64))

    def _encoded(self, raw: dict[str, RawColumn], rows: int, schema: Schema | None, reset: bool) -> Samples:
        """The columns of a DataFrame as vectors; without a ``schema`` one is fitted."""
        if schema is None:
            schema, notes = fit_frame(raw)
            for note in notes:
                warnings.warn(note, ColumnWarning, stacklevel=4)
        if reset:
            self.n_features_in_, self.feature_names_in_ = len(raw), np.array(list(raw), dtype=object)
        return Samples("vectors", torch.from_numpy(encode_frame(schema, raw, rows)), schema)

    def _counted(self, samples: Samples, features: int, reset: bool) -> Samples:
        if reset:
            self.n_features_in_ = features
            self.__dict__.pop("feature_names_in_", None)
        return samples

    def _embed(self, samples: Samples) -> Tensor:
        return self.fitted_.model.embed_scaled(self._scaled(samples))

    def _scaled(self, samples: Samples) -> Inputs:
        """What the encoder gets of samples of the kind that was fitted."""
        self._check_kind(samples)
        model = self.fitted_.model
        return model.scaled(read_samples(samples, model.transform, model.device))

    def _check_kind(self, samples: Samples) -> None:
        fitted = self.fitted_.spec
        if (samples.kind, samples.shape()) != (fitted.kind, fitted.shape):
            raise InputError(
                f"X holds {samples.kind} of shape {samples.shape()}, but {type(self).__name__} is expecting "
                f"{fitted.kind} of shape {fitted.shape}, as in fit."
            )

    def _html_repr(self) -> str:
        """The diagram of scikit-learn and, once fitted, a small map of the training examples."""
        drawn: str = super()._html_repr()
        return drawn + small_map(self.fitted_) if hasattr(self, "fitted_") else drawn

    @property
    def _n_features_out(self) -> int:
        return int(self.embedding_.shape[1])

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        tags.transformer_tags.preserves_dtype = []
        tags.input_tags.three_d_array = True
        return tags


def seed_of(random_state: Any) -> int:
    """The seed of a ``random_state``: a whole number itself, or a draw from anything else."""
    if isinstance(random_state, int | np.integer) and not isinstance(random_state, bool):
        return int(random_state)
    return int(check_random_state(random_state).randint(2**31))


def _dimensions(X: Any) -> int:
    return int(X.ndim if hasattr(X, "ndim") else np.asarray(X).ndim)
