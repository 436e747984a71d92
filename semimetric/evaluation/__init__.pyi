from semimetric.evaluation.collapse import Spread as Spread, activity_warning as activity_warning, collapse_warning as collapse_warning, decline_warning as decline_warning, measure_spread as measure_spread
from semimetric.evaluation.scores import RECALLS as RECALLS, evaluate as evaluate, map_at_r as map_at_r, nmi as nmi, recall_at_k as recall_at_k
from semimetric.evaluation.trust import Judged as Judged, Trust as Trust, TrustLevel as TrustLevel, calibration_error as calibration_error, hold_back as hold_back, judge as judge, trust_report as trust_report, wilson_interval as wilson_interval
