from semimetric.evaluation.collapse import (
    Spread,
    activity_warning,
    collapse_warning,
    decline_warning,
    measure_spread,
)
from semimetric.evaluation.scores import RECALLS, evaluate, nmi, recall_at_k
from semimetric.evaluation.trust import Judged, Trust, TrustLevel, hold_back, judge, trust_report, wilson_interval

__all__ = [
    "RECALLS",
    "Judged",
    "Spread",
    "Trust",
    "TrustLevel",
    "activity_warning",
    "collapse_warning",
    "decline_warning",
    "evaluate",
    "hold_back",
    "judge",
    "measure_spread",
    "nmi",
    "recall_at_k",
    "trust_report",
    "wilson_interval",
]
