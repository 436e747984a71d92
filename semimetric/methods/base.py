"""The contract of a method: what ``training`` asks of it, in the order of Algorithm 1."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

import torch
from torch import Tensor, nn

from semimetric.metric import Metric


@dataclass(frozen=True)
class Needs:
    """What a method cannot do without, so that a wrong input is refused before training starts."""

    labels: bool
    unlabelled: bool
    graph: bool
    views: bool = False

    def words(self) -> str:
        """The needs as a short list for tables."""
        names = {"labels": self.labels, "unlabelled data": self.unlabelled, "graph": self.graph, "views": self.views}
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

    def minibatches(self, size: int, generator: torch.Generator) -> Iterator[Self]:
        """Shuffled mini-batches of exactly ``size`` constraints; the remainder is dropped."""
        ...

    def quality(self, classes: Tensor) -> dict[str, float]:
        """Shares of right constraints by the true classes of the working set, for the log of a benchmark."""
        ...


C = TypeVar("C", bound=Constraints)


class Method(nn.Module, ABC, Generic[C]):
    """A way to learn a metric and an encoder together.

    Features are the l2-normalised outputs of the encoder, (n, d). A method may own trainable parts and buffers:
    they are ordinary module state, trained beside the encoder and saved with the run.

    ``capturable`` says that ``update_metric`` and ``loss`` never wait for values on the host, and that all
    mini-batches of an epoch are dataclasses of tensors of the same shapes: a GPU may then record a step and replay it.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    reference: ClassVar[str]
    needs: ClassVar[Needs]
    capturable: ClassVar[bool] = False
    Settings: ClassVar[type[Any]]

    @abstractmethod
    def initial_metric(self, width: int, generator: torch.Generator) -> Metric:
        """The metric to start from, for features of ``width`` dimensions."""

    def check_working_set(self, size: int) -> None:
        """Refuse, before training, working sets of ``size`` examples if they are too small; any size will do here."""

    @abstractmethod
    def constraints(self, features: Tensor, labels: Tensor) -> C:
        """What does this working set tell us? No gradients."""

    @abstractmethod
    def update_metric(self, metric: Metric, features: Tensor, constraints: C) -> Metric:
        """Encoder fixed: the new metric, from the features of ``constraints.nodes`` (no gradients)."""

    @abstractmethod
    def loss(self, metric: Metric, features: Tensor, constraints: C) -> Tensor:
        """Metric fixed: what the encoder minimises on the features of ``constraints.nodes``."""

    @abstractmethod
    def statistics(self, metric: Metric, features: Tensor, constraints: C) -> dict[str, float]:
        """Numbers worth a line in the log of an epoch.

        ``active_share``, where a method has it, is the share of violated constraints; training watches it.
        """
