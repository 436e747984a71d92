"""The scikit-learn front door: fit, transform, kneighbors and predict, for vectors, images and photographs."""

from __future__ import annotations

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
from torch import Tensor, nn

from semimetric.core.errors import DataError, InputError
from semimetric.data.labels import UNLABELLED, as_array, is_labelled, number_labels
from semimetric.data.samples import Samples, images, is_paths, photographs, vectors
from semimetric.encoders.photographs import Sight
from semimetric.methods import METHODS, method_names
from semimetric.model.fitted import Learned
from semimetric.pipeline.choice import Choice, Wishes, choose
from semimetric.pipeline.learn import Task, learn
from semimetric.training import choose_device

Array = NDArray[Any]


class MetricEstimator(ClassNamePrefixFeaturesOutMixin, ClassifierMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """What all estimators here have in common, whatever they learn.

    Attributes
    ----------
    classes_ : (C,) array
        The classes that have labels.
    embedding_ : (N, l) array
        Where the examples of ``fit`` lie.
    label_distributions_ : (N, C) array
        Class probabilities of the examples of ``fit``; their labels where they were known.
    confidence_ : (N,) array
        From 0, nothing known, to 1.
    learned_ : Learned
        The model itself.
    """

    learned_: Learned
    classes_: Array
    n_features_in_: int

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn from examples ``X`` and labels ``y`` (N,), -1 where there is none."""
        if y is None and self._needs_labels():
            raise InputError(
                f"{type(self).__name__} requires y to be passed, but the target y is None. Give a label for a few "
                "examples and -1 for the others."
            )
        samples = self._samples(X, reset=True)
        y = np.full(len(samples), -1) if y is None else y
        check_consistent_length(samples.values, y)
        classes, labels = number_labels(y)
        if len(samples) < 2:
            raise InputError(f"X has n_samples = {len(samples)}, and there is nothing to compare. Give at least 2.")
        self.adopt(self._learn(samples, labels), classes)
        return self

    def adopt(self, learned: Learned, classes: Array) -> None:
        """Become the estimator that has learned this."""
        self.classes_ = classes
        self.learned_ = learned
        self.n_iter_ = max(1, learned.facts.get("epochs", 1))
        self.embedding_ = learned.embeddings.numpy().copy()
        self.label_distributions_ = learned.posteriors.shares.numpy()
        self.confidence_ = learned.posteriors.confidence.numpy()

    @abstractmethod
    def _learn(self, samples: Samples, labels: Tensor) -> Learned:
        """What the examples and labels teach."""

    def _needs_labels(self) -> bool:
        return True

    def transform(self, X: Any) -> Array:
        """Embeddings (M, l) of examples ``X`` of the kind that was fitted."""
        check_is_fitted(self)
        embedded: Array = self._embed(self._samples(X, reset=False)).numpy()
        return embedded

    def kneighbors(self, X: Any = None, n_neighbors: int = 5, return_distance: bool = True) -> Any:
        """Distances (M, k) and numbers (M, k) of the examples of ``fit`` nearest to each of ``X``, nearest first.

        Without ``X``: to each of them, itself left out.
        """
        check_is_fitted(self)
        others = len(self.embedding_) - (X is None)
        if not 1 <= n_neighbors <= others:
            raise InputError(f"n_neighbors must be from 1 to {others}, the number of examples, got {n_neighbors}.")
        if X is None:
            distances, rows = self._without_themselves(n_neighbors)
        else:
            hits = self.learned_.nearest(self._embed(self._samples(X, reset=False)), n_neighbors)
            distances, rows = np.asarray(hits.distances), np.asarray(hits.rows)
        return (distances, rows) if return_distance else rows

    def _without_themselves(self, count: int) -> tuple[Array, Array]:
        hits = self.learned_.nearest(self.learned_.embeddings, count + 1)
        rows, distances = np.asarray(hits.rows), np.asarray(hits.distances)
        own = rows == np.arange(len(rows))[:, None]
        own[~own.any(1), -1] = True  # among many duplicates an example may not be its own neighbour
        return distances[~own].reshape(len(rows), count), rows[~own].reshape(len(rows), count)

    def predict_proba(self, X: Any) -> Array:
        """Class probabilities (M, C): those of the nearest examples of ``fit``, labelled or not."""
        check_is_fitted(self)
        shares: Array = self.learned_.name(self._embed(self._samples(X, reset=False))).numpy()
        return shares

    def predict(self, X: Any) -> Array:
        """The likeliest class (M,) of each example."""
        shares = self.predict_proba(X)
        named: Array = self.classes_[shares.argmax(1)]
        return named

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Accuracy of ``predict`` on the examples that have a label."""
        check_is_fitted(self)
        binary = self.classes_.dtype.kind in "iuf" and UNLABELLED in self.classes_
        known = np.ones(len(y), dtype=bool) if binary else is_labelled(y)
        if not known.any():
            raise InputError("y holds no label, so that nothing can be scored. Give labels of some examples.")
        named = self.predict(X)
        check_consistent_length(named, known)
        wanted = as_array(y)[known]
        wanted = wanted.astype(str) if self.classes_.dtype.kind == "U" else np.asarray(wanted.tolist())
        weights = None if sample_weight is None else np.asarray(sample_weight)[known]
        return float(accuracy_score(wanted, named[known], sample_weight=weights))

    def _samples(self, X: Any, reset: bool) -> Samples:
        """``X`` as what it is: paths, images, or else a matrix, checked as scikit-learn does."""
        if is_paths(X):
            samples = photographs(X)
            return self._counted(samples, 1, reset)
        if _dimensions(X) >= 3:
            samples = images(X)
            return self._counted(samples, prod(samples.shape()), reset)
        matrix = X.detach().cpu().numpy() if isinstance(X, Tensor) else X
        return vectors(validate_data(self, matrix, reset=reset, dtype=np.float64))

    def _counted(self, samples: Samples, features: int, reset: bool) -> Samples:
        if reset:
            self.n_features_in_ = features
            self.__dict__.pop("feature_names_in_", None)
        return samples

    def _embed(self, samples: Samples) -> Tensor:
        self._check_kind(samples)
        model = self.learned_.model
        return model.embed(read(samples, model.sight, model.device))

    def _check_kind(self, samples: Samples) -> None:
        fitted = self.learned_.built
        if (samples.kind, samples.shape()) != (fitted.kind, fitted.shape):
            raise InputError(
                f"X holds {samples.kind} of shape {samples.shape()}, but {type(self).__name__} is expecting "
                f"{fitted.kind} of shape {fitted.shape}, as in fit."
            )

    @property
    def _n_features_out(self) -> int:
        return int(self.embedding_.shape[1])

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        tags.transformer_tags.preserves_dtype = []
        tags.input_tags.three_d_array = True
        return tags


class SemiMetric(MetricEstimator):
    """An embedding in which similar things lie close, from a few labels and many unlabelled examples.

    ``X`` is a matrix (N, d), images (N, C, H, W), (N, H, W, C) or (N, H, W), or a sequence of paths of photographs.
    ``y`` (N,) has a label for some examples and -1 for the others; texts are labels too.

    Parameters
    ----------
    method : str
        One of ``semimetric methods``.
    encoder : str or nn.Module
        The network; "auto" takes what fits the data: an ``mlp`` for vectors (none for the linear methods), ``resnet9``
        for images on a GPU and ``small-cnn`` on a CPU, for photographs a pretrained network that ``weights`` names or
        that timm, torchvision or transformers have on this machine. A module is copied, not changed.
    n_components : int, optional
        Dimensions of the embedding; the network's own unless given.
    weights : path, optional
        File with the weights of a pretrained network of photographs.
    fine_tune : bool
        Train the pretrained network itself, rather than a matrix on its descriptors.
    side : int, optional
        Pixels to which photographs are brought; 224 for a pretrained network, 64 otherwise.
    preprocess : str
        Scaling of the inputs: "auto" standardises columns or channels.
    epochs : int, optional
        Epochs of training; the method's own unless given.
    settings : dict, optional
        Further settings of the method and of its training, by name.
    device : str
        "auto", "cpu" or "cuda".
    random_state : int, RandomState or None
        Of start weights, batches and views.

    Examples
    --------
    >>> from sklearn.datasets import load_wine
    >>> from semimetric import SemiMetric
    >>> X, y = load_wine(return_X_y=True)
    >>> labels = y.copy()
    >>> labels[30:] = -1; labels[100:105] = 1; labels[150:155] = 2
    >>> model = SemiMetric(random_state=0).fit(X, labels)
    >>> model.transform(X).shape
    (178, 64)
    >>> bool(model.score(X, y) > 0.9)
    True
    """

    def __init__(
        self,
        method: str = "consensus",
        encoder: Any = "auto",
        n_components: int | None = None,
        *,
        weights: Any = None,
        fine_tune: bool = False,
        side: int | None = None,
        preprocess: Any = "auto",
        epochs: int | None = None,
        settings: dict[str, Any] | None = None,
        device: str = "auto",
        random_state: Any = None,
    ) -> None:
        self.method = method
        self.encoder = encoder
        self.n_components = n_components
        self.weights = weights
        self.fine_tune = fine_tune
        self.side = side
        self.preprocess = preprocess
        self.epochs = epochs
        self.settings = settings
        self.device = device
        self.random_state = random_state

    def _needs_labels(self) -> bool:
        return self.method not in method_names() or METHODS[self.method].needs.labels

    def _learn(self, samples: Samples, labels: Tensor) -> Learned:
        device = choose_device(self.device)
        choice = choose(samples.kind, samples.shape(), self.method, self.wishes(), device)
        seed = seed_of(self.random_state)
        sight = choice.sight(seed)
        learned = learn(self.task(samples, read(samples, sight, device), labels, choice, sight, seed), device)
        if learned.facts.get("interrupted"):
            raise KeyboardInterrupt
        return learned

    def task(
        self, samples: Samples, inputs: Tensor, labels: Tensor, choice: Choice, sight: Sight | None, seed: int
    ) -> Task:
        """What ``fit`` learns from samples that have been read as ``inputs`` (N, ...)."""
        return Task(
            samples.kind,
            inputs,
            labels,
            self.method,
            choice,
            self.changes(),
            self.n_components,
            seed,
            sight,
            samples.shape(),
        )

    def changes(self) -> dict[str, Any]:
        """Settings of the method and of its training that are given."""
        return dict(self.settings or {}) | ({} if self.epochs is None else {"epochs": self.epochs})

    def wishes(self) -> Wishes:
        """What is said about the network."""
        if not isinstance(self.encoder, str | nn.Module):
            raise InputError(f"encoder must be a name or a torch.nn.Module, got {type(self.encoder).__name__}.")
        weights = None if self.weights is None else Path(self.weights)
        return Wishes(self.encoder, weights, self.fine_tune, self.side or 0, self.preprocess)


def seed_of(random_state: Any) -> int:
    """The seed that a ``random_state`` stands for: a whole number is one itself, anything else draws one."""
    if isinstance(random_state, int | np.integer) and not isinstance(random_state, bool):
        return int(random_state)
    return int(check_random_state(random_state).randint(2**31))


def _dimensions(X: Any) -> int:
    dimensions = getattr(X, "ndim", None)
    return int(np.asarray(X).ndim if dimensions is None else dimensions)


def read(samples: Samples, sight: Sight | None, device: torch.device) -> Tensor:
    """The examples as numbers (N, ...); a photograph that cannot be decoded is an error, since none may be left out."""
    if samples.kind != "photographs":
        return samples.tensor if sight is None else sight.describe(samples.tensor, device)
    assert sight is not None
    _, values, skipped = sight.read(samples.paths, device)
    if skipped:
        path, reason = next(iter(skipped.items()))
        raise DataError(
            f"{len(skipped)} of {len(samples)} photographs cannot be decoded, the first of them {path}: {reason}. "
            "Leave them out of X."
        )
    return values
