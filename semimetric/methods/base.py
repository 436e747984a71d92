"""The contract of a method: what it must answer, and what it may answer, in the order of Algorithm 1."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Protocol, TypeGuard, TypeVar

import torch
from torch import Tensor, nn

from semimetric.core.errors import InputError
from semimetric.core.space import Space
from semimetric.data import Views
from semimetric.data.stored import Inputs
from semimetric.graph import Posteriors
from semimetric.methods.defaults import LR, Values
from semimetric.metric import Metric


@dataclass(frozen=True)
class Needs:
    """The data a method needs. Training checks it first, and hides labels or unlabelled examples it does not need."""

    labels: bool
    unlabelled: bool
    graph: bool
    views: bool = False
    images: bool = False

    def words(self, labels_optional: bool = False) -> str:
        """The needs as a short list for tables."""
        names = ("labels (optional)" if labels_optional else "labels", "unlabelled data", "graph", "views", "images")
        needed = zip(names, dataclasses.astuple(self), strict=True)
        return ", ".join(name for name, need in needed if need) or "nothing"


class Constraints(Protocol):
    """What a method derives from a working set: triplets, pairs, edges, targets. A mini-batch is one of fewer nodes.

    ``nodes`` are the rows of the working set that the constraints use; all other indices are positions in ``nodes``.
    """

    @property
    def nodes(self) -> Tensor:
        """(n,) rows of the working set."""

    def __len__(self) -> int:
        """Number of constraints."""

    def minibatches(self, size: int, generator: torch.Generator) -> Iterator[Constraints]:
        """Shuffled mini-batches of exactly ``size`` constraints; the remainder is dropped."""

    def quality(self, classes: Tensor) -> dict[str, float]:
        """Shares of correct constraints, given the true classes of the working set, for the log of a benchmark."""


C = TypeVar("C", bound=Constraints)

Examples = Callable[[], tuple[Tensor, Tensor]]
"""Computes the features (N, d) of all training examples and returns them with the labels (N,) that the method sees."""


class Method(nn.Module, ABC, Generic[C]):
    """Trains an encoder, and keeps or learns a metric on its features.

    A method must define ``name``, ``summary``, ``reference``, ``needs`` and ``Settings``, and implement ``constraints``
    and ``loss``. Everything else is optional. A method that also learns the metric derives from ``LearnsMetric``, one
    that predicts classes from ``PredictsClasses``, one that learns from its averaged weights from
    ``LearnsFromAverage``.

    Features are the l2-normalised outputs of the encoder, (n, d). A method may own parameters and buffers. They are
    ordinary module state: parameters are trained with the encoder, and all state is saved with the run.
    """

    # Must be defined.
    name: ClassVar[str]
    summary: ClassVar[str]
    reference: ClassVar[str]
    needs: ClassVar[Needs]
    Settings: ClassVar[type[Any]]
    settings: Any

    # May be defined: how training may treat the method.
    capturable_loss: ClassVar[bool] = False
    """``loss`` never waits for values on the host, and all mini-batches of an epoch are dataclasses of tensors of the
    same shapes. A GPU then records one step and replays it."""
    follows_examples: ClassVar[bool] = False
    """Row i of the working set is the same example in every epoch: all examples are used, without partitions."""
    unlabelled_optional: ClassVar[bool] = False
    """The method uses unlabelled examples but also trains without any."""
    labels_optional: ClassVar[bool] = False
    """The method uses labels but also trains without any."""
    learns_without_network: ClassVar[bool] = False
    """The metric step alone learns from labels on fixed vectors."""

    # May be defined: default settings and search space.
    training_defaults: ClassVar[Values] = {}
    """Training settings for any data."""
    defaults_on: ClassVar[dict[str, Values]] = {}
    """Further settings by material ("vectors", "images", "descriptors", "pretrained") or by benchmark dataset. A
    dataset without an entry uses that of its material. "described" applies when a backbone is named for a dataset on
    which the method otherwise trains the backbone."""
    defaults_with: ClassVar[dict[str, Values]] = {}
    """Further settings by the name of the encoder. They win over those of ``defaults_on``."""
    space: ClassVar[Space] = LR
    """Values that tuning tries."""
    in_paper: ClassVar[bool] = False
    """The preset "paper" applies."""

    def __init__(self, settings: Any = None) -> None:
        super().__init__()
        self.settings = self.Settings() if settings is None else settings
        self.make_views: Views | None = None
        self.draws: torch.Generator | None = None
        """What training draws from, views and noise; None for torch's own generator, which training then seeds."""
        self._guards: dict[str, str] = {}

    # Must be implemented.

    @abstractmethod
    def constraints(self, features: Tensor, labels: Tensor) -> C:
        """The constraints of a working set, given its features (n, d) and labels (n,), -1 = unknown. No gradients."""

    @abstractmethod
    def loss(self, metric: Metric, features: Tensor, constraints: C) -> Tensor:
        """The loss of the encoder with the metric fixed, on the features of ``constraints.nodes`` or of their views."""

    # May be overridden, in the order of the calls.

    def check_labels(self, labels: Tensor) -> None:
        """Refuse labels (-1 = unknown) from which this method cannot learn."""
        known = labels[labels >= 0]
        if not self.needs.labels or self.labels_optional:
            return
        if len(known) == 0:
            raise InputError(
                f"method {self.name!r} needs labels and there is none: every label is -1. Label a few examples of each "
                "class, or use a method that needs none, such as 'instance' or 'stml'."
            )
        if len(torch.unique(known)) < 2:
            raise InputError(
                f"method {self.name!r} needs labelled examples of at least 2 classes, all {len(known)} are of class "
                f"{int(known[0])}. Label some of another class."
            )

    def initial_metric(self, width: int, generator: torch.Generator, examples: Examples | None = None) -> Metric:
        """The metric before training, for features of ``width`` dimensions; Euclidean distance by default."""
        return Metric.identity(width)

    def on_fit_begin(self, inputs: Inputs, labels: Tensor, width: int, generator: torch.Generator) -> None:
        """Called once before training, with the preprocessed inputs (N, ...) and their labels (N,).

        Build here what depends on the data or on the features' ``width``: a head, a memory bank, ``make_views``.
        Refuse inputs that the method cannot use.
        """

    def start_from(self, tensors: dict[str, Tensor], known: Tensor) -> None:
        """Called after it if the fit starts from a run: take over what the method learned there, its ``state_dict``.

        ``known`` (C,) are the numbers in the run of the C classes with labels here, -1 for a new one.
        """

    def check_working_set(self, labelled: int, unlabelled: int) -> None:
        """Refuse a working set of so many examples if it is too small for k neighbours. Called once before training."""
        k, size = getattr(self.settings, "k", 0), labelled + unlabelled
        if self.needs.graph and k >= size:
            raise InputError(
                f"k must be below the number of examples in the graph ({size}: a partition with the labelled ones, "
                f"where there are partitions), got {k}. Ask for fewer neighbours or give more examples."
            )

    def on_epoch_begin(self, epoch: int) -> None:
        """Called before ``constraints`` in each epoch, counted from 1.

        Draw the random numbers of an epoch here, with ``generator=self.draws``, which training seeds and saves.
        """

    def statistics(self, metric: Metric, features: Tensor, constraints: C) -> dict[str, float]:
        """Numbers for the log, before the epoch's training.

        ``active_share``, if present, is the share of violated constraints; training warns when it falls to nothing.
        """
        return {}

    def views(self, inputs: Tensor) -> Tensor:
        """The encoder's input for a batch (n, ...): the examples, or v views of each (v n, ...) by ``make_views``.

        All first views come before all second views. ``loss`` gets one feature for each view.
        """
        return inputs if self.make_views is None else self.make_views(inputs, self.draws)

    def without_gradient(self, size: int) -> slice:
        """Which views of a batch of ``size`` examples are encoded without a gradient, in the order of ``views``."""
        return slice(0, 0)

    def on_epoch_end(self) -> dict[str, float]:
        """Called after the training of each epoch; returns more numbers for the log."""
        return {}

    def trained_metric(self, metric: Metric) -> Metric:
        """The metric that belongs to the weights, asked for before each score; by default the metric as it is.

        Override it if the metric is a parameter of the method, trained with the encoder.
        """
        return metric

    # Guards: departures from the published method that keep its problem solvable, such as a capped weight.

    def bind_guard(self, name: str, sentence: str) -> None:
        """Record that the guard ``name`` took effect; ``sentence`` tells the user what was done and why."""
        self._guards[name] = sentence

    def take_guards(self) -> dict[str, str]:
        """Return the guards recorded since the last call, and forget them."""
        taken, self._guards = self._guards, {}
        return taken


class LearnsMetric(Method[C]):
    """A method that learns the metric as well."""

    learns_without_network = True
    capturable_metric: ClassVar[bool] = False
    """Like ``capturable_loss``, for ``update_metric``."""

    @property
    def metric_after_steps(self) -> bool:
        """Whether no loss uses the metric: it is then updated after the steps of an epoch, on the trained features."""
        return False

    @abstractmethod
    def update_metric(self, metric: Metric, features: Tensor, constraints: C) -> Metric:
        """The new metric with the encoder fixed, from the features of ``constraints.nodes``. No gradients."""


class PredictsClasses(Method[C]):
    """A method that predicts a class for each example; held-out labels then estimate how accurate it is."""

    @abstractmethod
    def posteriors(self, constraints: C) -> Posteriors:
        """Class probabilities and confidence of each example of the working set."""


class LearnsFromAverage(Method[C]):
    """A method whose teacher is the running average of the weights; training refuses ``average`` 0."""

    @property
    def taught(self) -> bool:
        """Whether the settings ask for the teacher; without it ``teach`` is not called."""
        return True

    @abstractmethod
    def teach(self, features: Tensor, constraints: C) -> C:
        """The constraints of a batch for ``loss``, with what the teacher says of the same views. No gradients.

        The averages of the encoder gave the ``features``, and the parameters of this method are averages, too.
        """


def is_taught(method: Method[Any]) -> TypeGuard[LearnsFromAverage[Any]]:
    """Whether a method learns from the running average of the weights."""
    return isinstance(method, LearnsFromAverage) and method.taught


def shuffled_batches(count: int, size: int, generator: torch.Generator) -> Tensor:
    """(count // size, size) of the numbers below ``count``, in random order."""
    return torch.randperm(count, generator=generator)[: count // size * size].reshape(-1, size)
