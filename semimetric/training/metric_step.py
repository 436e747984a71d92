"""When an epoch updates the metric, and in which space training is watched."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from semimetric.data.stored import some_of
from semimetric.evaluation import Spread, measure_spread
from semimetric.methods import LearnsMetric, Method
from semimetric.metric import Metric
from semimetric.training.together import agreed_metric

if TYPE_CHECKING:
    from semimetric.training.trainer import Trainer


def updated_before_steps(trainer: Trainer, features: Tensor, constraints: Any) -> Metric:
    """The metric for the steps of an epoch, updated on the features of its working set."""
    learner = _learner(trainer, after_steps=False)
    return trainer.metric if learner is None else _updated(trainer, learner, features, constraints)


def updated_after_steps(trainer: Trainer, rows: Tensor, constraints: Any) -> Metric:
    """The metric after the steps of an epoch on ``rows``; if no loss uses it, it is updated on the trained features."""
    learner = _learner(trainer, after_steps=True)
    if learner is None:
        return trainer.metric
    return _updated(trainer, learner, trainer._features(some_of(trainer.data.inputs, rows)), constraints)


def spread_of(method: Method[Any], metric: Metric, features: Tensor) -> Spread:
    """Spread of the embedding at the scale of an orthonormal metric; of the features, if no loss uses the metric."""
    if isinstance(method, LearnsMetric) and method.metric_after_steps:
        return measure_spread(features)
    scale = metric.factor.square().sum() / metric.factor.shape[1]
    return measure_spread(metric.transform(features) / scale.sqrt())


def _learner(trainer: Trainer, after_steps: bool) -> LearnsMetric[Any] | None:
    """The method, if it updates the metric once per epoch at this moment."""
    method = trainer.method
    if trainer.settings.metric_every != "epoch" or not isinstance(method, LearnsMetric):
        return None
    return method if method.metric_after_steps == after_steps else None


def _updated(trainer: Trainer, learner: LearnsMetric[Any], features: Tensor, constraints: Any) -> Metric:
    return agreed_metric(learner.update_metric(trainer.metric, features, constraints))
