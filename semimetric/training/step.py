"""One step of training: the metric with the encoder fixed, then the encoder with the metric fixed.

The networks here are small, so that on a GPU the time goes into launching kernels. For a method that allows it the
whole step, optimiser included, is therefore recorded once as a CUDA graph and replayed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from semimetric.core.errors import DivergedError
from semimetric.encoders import features_of
from semimetric.methods import LearnsMetric, Method
from semimetric.metric import GraphedFunction, Metric
from semimetric.training.average import RunningAverage
from semimetric.training.optimizer import create_state

MOST_BATCHES = 16
MOST_VIEWS = 4
VIEW_BYTES = 1 << 30
"""Views are made at once for at most so many batches, of at most so many bytes with so many views of an example."""


class TrainingStep:
    """Trains ``encoder``, and what the method owns, on one mini-batch of constraints at a time."""

    def __init__(
        self,
        encoder: nn.Module,
        method: Method[Any],
        optimizer: torch.optim.Optimizer,
        inputs: Tensor,
        update_metric: bool,
        train_encoder: bool = True,
        average: RunningAverage | None = None,
        precision: str = "float32",
    ) -> None:
        self.encoder = encoder
        self.method = method
        self.optimizer = optimizer
        self.inputs = inputs
        self.metric_learner = method if update_metric and isinstance(method, LearnsMetric) else None
        self.train_encoder = train_encoder
        self.average = average
        self.precision = precision
        self._batch_type: type[Any] | None = None
        self._graphed: GraphedFunction | None = None
        capturable = method.capturable_loss and (self.metric_learner is None or self.metric_learner.capturable_metric)
        if inputs.is_cuda and capturable:
            self._graphed = GraphedFunction(self._on_tensors, self._changed_by_a_step)

    def at_once(self, size: int) -> int:
        """For how many batches of ``size`` examples to make views at once: on a GPU as many as fit into little memory.

        Making a view takes many small operations, which cost the same for one batch as for several.
        """
        if not (self.inputs.is_cuda and self.method.needs.views):
            return 1
        bytes_of_a_batch = MOST_VIEWS * size * self.inputs[0].numel() * self.inputs.element_size()
        return max(1, min(MOST_BATCHES, VIEW_BYTES // bytes_of_a_batch))

    def views(self, rows: list[Tensor]) -> Tensor:
        """What the encoder will see of each of some batches of examples, given by their rows: (batches, v n, ...)."""
        views = self.method.views(self.inputs[torch.cat(rows)])
        batches, size = len(rows), len(rows[0])
        by_view = views.reshape(-1, batches, size, *views.shape[1:])
        return by_view.transpose(0, 1).reshape(batches, -1, *views.shape[1:])

    def __call__(self, metric: Metric, views: Tensor, batch: Any) -> Metric:
        """Train on ``views`` of the nodes of ``batch``; the updated metric comes back."""
        if self._graphed is None:
            return self._step(metric, views, batch)
        if self._batch_type is None:
            create_state(self.optimizer)
            self._batch_type = type(batch)
        tensors = (getattr(batch, field.name).to(views.device) for field in dataclasses.fields(batch))
        (factor,) = self._graphed(metric.factor, views, *tensors)
        return Metric(factor)

    def _on_tensors(self, factor: Tensor, views: Tensor, *tensors: Tensor) -> tuple[Tensor]:
        assert self._batch_type is not None
        return (self._step(Metric(factor), views, self._batch_type(*tensors)).factor,)

    def _step(self, metric: Metric, views: Tensor, batch: Any) -> Metric:
        with torch.set_grad_enabled(self.train_encoder):
            features = features_of(self.encoder, views, self.precision)
            if features.is_cpu:  # on a GPU the check would wait for the device; the next epoch's will do
                check_not_diverged(features)
            if self.metric_learner is not None:
                metric = self.metric_learner.update_metric(metric, features.detach(), batch)
            if not self.train_encoder:
                return metric
            loss = self.method.loss(metric, features, batch)
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
        self.optimizer.step()
        if self.average is not None:
            self.average.follow()
        return metric

    def _changed_by_a_step(self) -> Iterator[Tensor]:
        yield from self.encoder.state_dict().values()
        yield from self.method.state_dict().values()
        for values in self.optimizer.state.values():
            yield from (value for value in values.values() if isinstance(value, Tensor))
        if self.average is not None:
            yield from self.average.changed()


def batched(items: Iterator[Any], count: int) -> Iterator[list[Any]]:
    """The items in lists of ``count``, fewer in the last."""
    while batch := list(islice(items, count)):
        yield batch


def check_not_diverged(features: Tensor) -> None:
    """Stop when the encoder's outputs are not finite any more."""
    if not bool(torch.isfinite(features).all()):
        raise DivergedError(
            "training diverged: the encoder returns NaN or infinite values. The best model so far is kept; start "
            "again with a smaller --lr."
        )
