"""Scores of an embedding and signs of its collapse."""

from semimetric.evaluation.collapse import (
    Spread,
    activity_warning,
    collapse_warning,
    decline_warning,
    measure_spread,
)
from semimetric.evaluation.scores import RECALLS, evaluate, nmi, recall_at_k

__all__ = [
    "RECALLS",
    "Spread",
    "activity_warning",
    "collapse_warning",
    "decline_warning",
    "evaluate",
    "measure_spread",
    "nmi",
    "recall_at_k",
]
