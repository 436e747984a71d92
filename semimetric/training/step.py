"""One training step: update the metric with the encoder fixed, then the encoder with the metric fixed.

The networks here are small, so kernel launches dominate the time on a GPU. If the method allows it, the whole step with
the optimiser is captured once as a CUDA graph and replayed.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from semimetric.core import ranks
from semimetric.core.errors import DivergedError
from semimetric.data.stored import Inputs, read_ahead
from semimetric.methods import LearnsFromAverage, LearnsMetric, Method, is_taught
from semimetric.metric import GraphedFunction, Metric
from semimetric.training.average import RunningAverage
from semimetric.training.optimizer import Optimizer, create_state
from semimetric.training.together import agreed_metric
from semimetric.training.whole_batch import whole_features

MOST_BATCHES, MOST_VIEWS, VIEW_BYTES = 16, 4, 1 << 30  # limits of what is made at once: batches, views each, bytes


@dataclass(eq=False)
class TrainingStep:
    """Trains the encoder, and the parameters of the method, on one mini-batch of constraints at a time."""

    encoder: nn.Module
    method: Method[Any]
    optimizer: Optimizer
    inputs: Inputs
    update_metric: bool
    train_encoder: bool = True
    average: RunningAverage | None = None
    precision: str = "float32"
    compiled: bool = False
    _batch_type: type[Any] | None = field(default=None, init=False)
    _graphed: GraphedFunction | None = field(default=None, init=False)
    _losses: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        learner = self.method if self.update_metric and isinstance(self.method, LearnsMetric) else None
        self._metric_learner = learner
        self._loss = torch.zeros((), dtype=torch.float64, device=self.inputs.device)
        self._teacher = _Teacher(self.encoder, self.method, self.precision) if is_taught(self.method) else None
        self._loss_of_views: Callable[..., Tensor] = self._features_and_loss
        if self.compiled and self.method.capturable_loss and learner is None:
            torch.compiler.reset()  # else torch compiles a function only for the first few different settings
            self._loss_of_views = torch.compile(self._features_and_loss, dynamic=False)
        capturable = self.method.capturable_loss and (learner is None or learner.capturable_metric)
        if self.inputs.is_cuda and capturable and ranks.world().size == 1:
            self._graphed = GraphedFunction(self._on_tensors, self._changed_by_a_step)

    def at_once(self, size: int) -> int:
        """Number of batches of ``size`` examples to make views for at once; above 1 on a GPU only, limited by memory.

        Making views takes many small operations, which cost the same for one batch as for several.
        """
        if not (self.inputs.is_cuda and self.method.needs.views):
            return 1
        bytes_of_a_batch = MOST_VIEWS * size * prod(self.inputs.shape[1:]) * self.inputs.dtype.itemsize
        return max(1, min(MOST_BATCHES, VIEW_BYTES // bytes_of_a_batch))

    def examples(self, groups: Iterable[list[Any]], rows: Tensor) -> Iterator[tuple[list[Any], Tensor]]:
        """Each group of batches with its examples, batch after batch; ``rows`` are those of all nodes."""
        return read_ahead(self.inputs, ((group, torch.cat([rows[batch.nodes] for batch in group])) for group in groups))

    def views(self, examples: Tensor, batches: int) -> Tensor:
        """Encoder inputs (batches, v n, ...) for several batches, given by their examples (batches n, ...)."""
        views = self.method.views(examples)
        by_view = views.reshape(-1, batches, len(examples) // batches, *views.shape[1:])
        return by_view.transpose(0, 1).reshape(batches, -1, *views.shape[1:])

    def __call__(self, metric: Metric, views: Tensor, batch: Any) -> Metric:
        """Train on ``views`` of the nodes of ``batch`` and return the updated metric."""
        self._losses += self.train_encoder
        if self._graphed is None:
            return self._step(metric, views, batch)
        if self._batch_type is None:
            create_state(self.optimizer)
            self._batch_type = type(batch)
        tensors = (getattr(batch, field.name).to(views.device) for field in dataclasses.fields(batch))
        (factor,) = self._graphed(metric.factor, views, *tensors)
        return Metric(factor)

    def take_loss(self) -> dict[str, float]:
        """The mean loss of the batches since the last call, for the log; nothing without batches or a finite loss."""
        mean = float(self._loss) / max(1, self._losses)
        there = self._losses > 0 and math.isfinite(mean)
        self._loss.zero_()
        self._losses = 0
        return {"training_loss": mean} if there else {}

    def _on_tensors(self, factor: Tensor, views: Tensor, *tensors: Tensor) -> tuple[Tensor]:
        assert self._batch_type is not None
        return (self._step(Metric(factor), views, self._batch_type(*tensors)).factor,)

    def _step(self, metric: Metric, views: Tensor, batch: Any) -> Metric:
        batch = self._taught(views, batch)
        if self._metric_learner is None:
            with torch.enable_grad():  # around a compiled function, which would else have no backward pass
                loss = self._loss_of_views(metric, views, batch)
        else:
            with torch.set_grad_enabled(self.train_encoder):
                features = self._features(views, len(batch))
            metric = agreed_metric(self._metric_learner.update_metric(metric, features.detach(), batch))
            if not self.train_encoder:
                return metric
            with torch.enable_grad():
                loss = self.method.loss(metric, features, batch)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self._loss += loss.detach()
        ranks.join_gradients(self.encoder.parameters(), self.method.parameters())
        self.optimizer.step()
        if self.average is not None:
            self.average.follow()
        return metric

    def _features(self, views: Tensor, size: int) -> Tensor:
        features = self._encoded(views, self.method.without_gradient(size))
        if features.is_cpu:  # would synchronise a GPU; there the check of the next epoch suffices
            check_not_diverged(features)
        return features

    def _encoded(self, views: Tensor, fixed: slice) -> Tensor:
        """Features of all views; those of ``fixed`` get no gradient, and batch statistics of their own."""
        first, last = fixed.start, fixed.stop
        if first == last:
            return whole_features(self.encoder, views, self.precision)
        with torch.no_grad():
            constant = whole_features(self.encoder, views[first:last], self.precision)
        trained = whole_features(self.encoder, torch.cat([views[:first], views[last:]]), self.precision)
        return torch.cat([trained[:first], constant, trained[first:]])

    def _features_and_loss(self, metric: Metric, views: Tensor, batch: Any) -> Tensor:
        return self.method.loss(metric, self._features(views, len(batch)), batch)

    @torch.no_grad()
    def _taught(self, views: Tensor, batch: Any) -> Any:
        """The batch, with what the averaged weights say of it if the method learns from them."""
        if self._teacher is None:
            return batch
        assert self.average is not None, "a method that learns from the average needs one"
        return functional_call(self._teacher, self.average.averages(self._teacher), (views, batch))

    def _changed_by_a_step(self) -> Iterator[Tensor]:
        yield self._loss
        yield from self.encoder.state_dict().values()
        yield from self.method.state_dict().values()
        for values in self.optimizer.state.values():
            yield from (value for value in values.values() if isinstance(value, Tensor))
        if self.average is not None:
            yield from self.average.changed()


class _Teacher(nn.Module):
    """Encoder and method as one module, so that both can be called with other weights."""

    method: LearnsFromAverage[Any]

    def __init__(self, encoder: nn.Module, method: LearnsFromAverage[Any], precision: str) -> None:
        super().__init__()
        self.encoder, self.method, self.precision = encoder, method, precision

    def forward(self, views: Tensor, batch: Any) -> Any:
        return self.method.teach(whole_features(self.encoder, views, self.precision), batch)


def batched(items: Iterator[Any], count: int) -> Iterator[list[Any]]:
    """The items in lists of ``count``; the last list may be shorter."""
    while batch := list(islice(items, count)):
        yield batch


def check_not_diverged(features: Tensor) -> None:
    """Raise an error if the encoder's outputs are not finite."""
    if not bool(torch.isfinite(features).all()):
        raise DivergedError(
            "training diverged: the encoder returns NaN or infinite values. The best model so far is kept; start "
            "again with a smaller --lr."
        )
