"""What several ranks that train one model agree on. One process alone has nothing to agree on."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from torch import Tensor

from semimetric.core import ranks
from semimetric.evaluation import Spread
from semimetric.metric import Metric
from semimetric.training.checkpoint import load_trained, trained_tensors
from semimetric.training.selection import Score

if TYPE_CHECKING:
    from semimetric.training.trainer import Trainer


def agree(trainer: Trainer) -> None:
    """All ranks go on with the same model, that of the first where rounding made them differ."""
    if ranks.world().size == 1:
        return
    load_trained(trainer, ranks.agreed(trained_tensors(trainer)))
    if trainer.average:
        trainer.average.restore(ranks.agreed(trainer.average.state()))


def agreed_constraints(constraints: Any) -> Any:
    """The same constraints on all ranks: each has computed them, and where they differ, the first rank's are taken."""
    if ranks.world().size == 1:
        return constraints
    fields = {field.name: getattr(constraints, field.name) for field in dataclasses.fields(constraints)}
    tensors = {name: value for name, value in fields.items() if isinstance(value, Tensor)}
    found = ranks.agreed(tensors)
    return constraints if found is tensors else dataclasses.replace(constraints, **found)


def agreed_metric(metric: Metric) -> Metric:
    """The metric that all ranks go on with."""
    return metric if ranks.world().size == 1 else Metric(ranks.agreed({"factor": metric.factor})["factor"])


def agreed_scores(spread: Spread, scored: tuple[Score, dict[str, float]]) -> tuple[Spread, Score, dict[str, float]]:
    """The first rank's scores of an epoch, which say how all go on."""
    found, score, scores = ranks.of_first((dataclasses.asdict(spread), *scored))
    return Spread(**found), tuple(score), scores


def finish_alone() -> bool:
    """True for one process that was interrupted; several stopped at different places, and are interrupted for good."""
    if ranks.world().size > 1:
        raise KeyboardInterrupt
    return True
