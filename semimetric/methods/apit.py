"""Affinity propagation with an information-theoretic prior.

U. K. Dutta, C. C. Sekhar, "Affinity propagation based closed-form semi-supervised metric learning framework", ICANN
2018. The prior is J. V. Davis, B. Kulis, P. Jain, S. Sra, I. S. Dhillon, "Information-theoretic metric learning",
ICML 2007. End to end as in Dutta, Harandi and Sekhar, AAAI 2021.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from semimetric.core.checks import check_at_least, check_positive
from semimetric.core.settings import setting
from semimetric.core.space import Range
from semimetric.methods.defaults import extended
from semimetric.methods.pairs import with_rates
from semimetric.methods.propagated import ON_FEATURES, PropagatedMethod, PropagatedSettings
from semimetric.metric import PairScatters, information_theoretic_prior

SETTLED = {name: values | {"sweeps": 500} for name, values in ON_FEATURES.items()}
"""On features of a network the prior needs up to a few hundred sweeps to converge."""


@dataclass(frozen=True)
class APITSettings(PropagatedSettings):
    """Hyper-parameters."""

    slack: float = setting(0.3, "Weight of the distance bounds relative to closeness to the Euclidean metric.")
    sweeps: int = setting(50, "Most sweeps over the labelled pairs; fewer if the prior converges before.")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self.slack, "slack")
        check_at_least(self.sweeps, 1, "sweeps")


class APIT(PropagatedMethod):
    """The prior keeps similar pairs within a small distance and dissimilar pairs beyond a large one.

    Of all metrics that do so, up to slack, it is the closest to the Euclidean one in LogDet divergence. If there are
    too many pairs, an evenly spaced subset is used.
    """

    name = "apit"
    summary = "information-theoretic prior adapted by propagated affinities, in closed form"
    reference = "Dutta and Sekhar, ICANN 2018; deep: Dutta, Harandi and Sekhar, AAAI 2021"
    space = PropagatedMethod.space | {"slack": Range(0.05, 1.0, log=True)}
    defaults_on = extended(with_rates(digits=1e-8, mnist=1e-9, fashion_mnist=1e-9, cifar10=1e-9), SETTLED)
    Settings = APITSettings
    settings: APITSettings

    def prior(self, features: Tensor, classes: Tensor, scatters: PairScatters) -> Tensor | None:
        """The metric of ITML, by cyclic projections."""
        if float(scatters.similar.trace()) == 0 or float(scatters.dissimilar.trace()) == 0:
            return None
        found = information_theoretic_prior(features, classes, self.settings.slack, max_sweeps=self.settings.sweeps)
        if found.widened:
            self.bind_guard(
                "bounds_widened",
                f"{self.name}: all labelled pairs have the same distance; the prior's bounds are set 10 % around it.",
            )
        if not found.converged:
            self.bind_guard(
                "prior_not_settled",
                f"{self.name}: the prior did not converge in {found.sweeps} sweeps over the labelled pairs; the last "
                "iterate is used.",
            )
        return found.matrix
