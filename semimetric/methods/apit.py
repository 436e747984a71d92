"""Affinity propagation with an information-theoretic prior.

U. K. Dutta, C. C. Sekhar, "Affinity propagation based closed-form semi-supervised metric learning framework", ICANN
2018. The prior is J. V. Davis, B. Kulis, P. Jain, S. Sra, I. S. Dhillon, "Information-theoretic metric learning",
ICML 2007. End to end as in Dutta, Harandi and Sekhar, AAAI 2021.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from semimetric.core.checks import check_positive
from semimetric.core.settings import setting
from semimetric.methods.propagated import PropagatedMethod, PropagatedSettings
from semimetric.metric import PairScatters, information_theoretic_prior


@dataclass(frozen=True)
class APITSettings(PropagatedSettings):
    """Hyper-parameters."""

    slack: float = setting(0.3, "Weight of the bounds on labelled pairs beside closeness to the Euclidean metric.")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self.slack, "slack")


class APIT(PropagatedMethod):
    """The prior keeps similar pairs within a small distance and dissimilar pairs beyond a large one.

    Among the metrics that do so, up to slack, it is the one closest to the Euclidean in LogDet divergence. Of too
    many pairs some are taken, evenly by the order of the examples.
    """

    name = "apit"
    summary = "information-theoretic prior adapted by propagated affinities, in closed form"
    reference = "Dutta and Sekhar, ICANN 2018; deep: Dutta, Harandi and Sekhar, AAAI 2021"
    Settings = APITSettings
    settings: APITSettings

    def prior(self, features: Tensor, classes: Tensor, scatters: PairScatters) -> Tensor | None:
        """The metric of ITML, by cyclic projections."""
        if float(scatters.similar.trace()) == 0 or float(scatters.dissimilar.trace()) == 0:
            return None
        found = information_theoretic_prior(features, classes, self.settings.slack)
        if found.widened:
            self.bind_guard(
                "bounds_widened",
                f"{self.name}: the labelled pairs all lie at one distance, so that the prior's bounds were set 10 % "
                "around it.",
            )
        if not found.converged:
            self.bind_guard(
                "prior_not_settled",
                f"{self.name}: the prior's projections were stopped after {found.sweeps} sweeps over the labelled "
                "pairs, before they settled; the prior is a metric all the same.",
            )
        return found.matrix
