"""The contract of a method: what ``training`` asks of it, in the order of Algorithm 1."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import torch
from torch import Tensor, nn

from semimetric.core.errors import InputError
from semimetric.graph import Posteriors
from semimetric.metric import Metric


@dataclass(frozen=True)
class Needs:
    """What a method cannot do without, so that a wrong input is refused before training starts."""

    labels: bool
    unlabelled: bool
    graph: bool
    views: bool = False
    images: bool = False

    def words(self) -> str:
        """The needs as a short list for tables."""
        names = {
            "labels": self.labels,
            "unlabelled data": self.unlabelled,
            "graph": self.graph,
            "views": self.views,
            "images": self.images,
        }
        return ", ".join(name for name, needed in names.items() if needed) or "nothing"


class Constraints(Protocol):
    """What a working set of examples tells a method: triplets, pairs, edges.

    ``nodes`` are the rows of the working set that the constraints touch; all other indices inside refer to
    positions in ``nodes``. A mini-batch is again ``Constraints``, over fewer nodes.
    """

    @property
    def nodes(self) -> Tensor:
        """(n,) rows of the working set."""
        ...

    def __len__(self) -> int:
        """Number of constraints."""
        ...

    def minibatches(self, size: int, generator: torch.Generator) -> Iterator[Constraints]:
        """Shuffled mini-batches of exactly ``size`` constraints; the remainder is dropped."""
        ...

    def quality(self, classes: Tensor) -> dict[str, float]:
        """Shares of right constraints by the true classes of the working set, for the log of a benchmark."""
        ...


C = TypeVar("C", bound=Constraints)

Examples = Callable[[], tuple[Tensor, Tensor]]
"""Computes the features (N, d) of all training examples, and has their labels (N,), as far as the method may know."""


class Method(nn.Module, ABC, Generic[C]):
    """A way to learn a metric and an encoder together.

    Features are the l2-normalised outputs of the encoder, (n, d). A method may own trainable parts and buffers:
    they are ordinary module state, trained beside the encoder and saved with the run.

    ``capturable_loss`` says that ``loss`` never waits for values on the host, and that all mini-batches of an epoch are
    dataclasses of tensors of the same shapes; ``capturable_metric`` says the same of ``update_metric``. A GPU may then
    record a step, with the metric's update where that belongs to it, and replay it.

    ``follows_examples`` says that row i of the working set must be the same example in every epoch: the working set is
    then all examples, in their order, and there are no partitions.

    ``unlabelled_optional`` says of a method that learns from unlabelled examples that it learns without any as well.

    ``learns_without_network`` says that ``update_metric`` alone learns something from labels, on fixed vectors.

    A guard is a departure from the method as it is written that keeps its problem solvable: a capped weight, a
    replaced prior. ``bind_guard`` notes one, ``take_guards`` hands over what was noted since it was last asked.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    reference: ClassVar[str]
    needs: ClassVar[Needs]
    capturable_loss: ClassVar[bool] = False
    capturable_metric: ClassVar[bool] = False
    follows_examples: ClassVar[bool] = False
    unlabelled_optional: ClassVar[bool] = False
    learns_without_network: ClassVar[bool] = True
    Settings: ClassVar[type[Any]]
    settings: Any

    def __init__(self, settings: Any = None) -> None:
        super().__init__()
        self.settings = self.Settings() if settings is None else settings
        self._guards: dict[str, str] = {}

    def bind_guard(self, name: str, sentence: str) -> None:
        """Note that the guard ``name`` is at work; ``sentence`` tells the user what was done and why."""
        self._guards[name] = sentence

    def take_guards(self) -> dict[str, str]:
        """Sentences of the guards noted since this was last asked, by name."""
        taken, self._guards = self._guards, {}
        return taken

    def check_labels(self, labels: Tensor) -> None:
        """Refuse labels (-1 = unknown) from which this method cannot learn."""
        known = labels[labels >= 0]
        if not self.needs.labels:
            return
        if len(known) == 0:
            raise InputError(
                f"method {self.name!r} needs labels and there is none: every label is -1. Label a few examples of each "
                "class, or use a method that needs none, such as 'instance'."
            )
        if len(torch.unique(known)) < 2:
            raise InputError(
                f"method {self.name!r} needs labelled examples of at least 2 classes, all {len(known)} are of class "
                f"{int(known[0])}. Label some of another class."
            )

    def prepare(self, inputs: Tensor, labels: Tensor, width: int, generator: torch.Generator) -> None:
        """Build, before anything is trained, the parts whose size depends on the data or on the features' width.

        Inputs are preprocessed examples (N, ...); what the method cannot use is refused here. Most methods have none.
        """

    def begin_epoch(self, epoch: int) -> None:
        """Called before the constraints of each epoch, counted from 1, are asked for.

        Random numbers of an epoch may be drawn here, from torch's own generator, which training seeds and keeps.
        """

    def initial_metric(self, width: int, generator: torch.Generator, examples: Examples | None = None) -> Metric:
        """The metric to start from, for features of ``width`` dimensions; Euclidean distance unless there is more.

        ``examples`` are for a start that depends on them.
        """
        return Metric.identity(width)

    def check_working_set(self, labelled: int, unlabelled: int) -> None:
        """Refuse, before training, working sets of so many examples if they are too small; any size will do here."""

    def views(self, inputs: Tensor) -> Tensor:
        """What the encoder sees of a batch (n, ...): its examples as they are, or views of them (v n, ...).

        ``loss`` is then given a feature of each view, all first views before all second ones.
        """
        return inputs

    @abstractmethod
    def constraints(self, features: Tensor, labels: Tensor) -> C:
        """What does this working set tell us? No gradients."""

    def update_metric(self, metric: Metric, features: Tensor, constraints: C) -> Metric:
        """Encoder fixed: the new metric, from the features of ``constraints.nodes`` (no gradients).

        A method that trains the encoder alone keeps the metric as it is.
        """
        return metric

    @abstractmethod
    def loss(self, metric: Metric, features: Tensor, constraints: C) -> Tensor:
        """Metric fixed: what the encoder minimises on the features of ``constraints.nodes``, or of their views."""

    def metric_objective(self, metric: Metric, features: Tensor, constraints: C) -> float:
        """What ``update_metric`` lowers; the loss, unless the method has more to say about the metric."""
        with torch.no_grad():
            return float(self.loss(metric, features, constraints))

    def posteriors(self, constraints: C) -> Posteriors | None:
        """What the method takes each example of the working set to be; none if it names no classes."""
        return None

    def in_use(self) -> dict[str, float]:
        """Numbers of the method's own that the last metric step set, for the log of an epoch."""
        return {}

    @abstractmethod
    def statistics(self, metric: Metric, features: Tensor, constraints: C) -> dict[str, float]:
        """Numbers worth a line in the log of an epoch.

        ``active_share``, where a method has it, is the share of violated constraints; training watches it.
        """


def check_neighbor_count(k: int, size: int) -> None:
    """Every example of a working set of ``size`` needs ``k`` others."""
    if k >= size:
        raise InputError(
            f"k must be below the number of examples in the graph ({size}: a partition with the labelled ones, where "
            f"there are partitions), got {k}. Ask for fewer neighbours or give more examples."
        )
