"""Affinity propagation with a log-likelihood-ratio prior.

U. K. Dutta, C. C. Sekhar, "Affinity propagation based closed-form semi-supervised metric learning framework", ICANN
2018. The prior is M. Koestinger, M. Hirzer, P. Wohlhart, P. M. Roth, H. Bischof, "Large scale metric learning from
equivalence constraints", CVPR 2012. End to end as in Dutta, Harandi and Sekhar, AAAI 2021.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from semimetric.core.errors import InputError
from semimetric.core.settings import setting
from semimetric.core.space import Range
from semimetric.methods.defaults import extended
from semimetric.methods.pairs import with_rates
from semimetric.methods.propagated import ON_FEATURES, PropagatedMethod, PropagatedSettings
from semimetric.metric import PairScatters, likelihood_ratio_prior


@dataclass(frozen=True)
class APLLRSettings(PropagatedSettings):
    """Hyper-parameters."""

    shrinkage: float = setting(0.7, "Shrinkage of the pair scatters towards a multiple of the identity, in (0, 1].")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.0 < self.shrinkage <= 1.0:
            raise InputError(f"shrinkage must be in (0, 1], got {self.shrinkage}.")


class APLLR(PropagatedMethod):
    """The prior is the positive part of S_s^-1 - S_d^-1, from shrunk scatters.

    This is the log-likelihood ratio of similar and dissimilar pairs if their differences are Gaussian. The shrinkage is
    an addition: with fewer labels than dimensions S_s is singular.
    """

    name = "apllr"
    summary = "log-likelihood-ratio prior adapted by propagated affinities, in closed form"
    reference = "Dutta and Sekhar, ICANN 2018; deep: Dutta, Harandi and Sekhar, AAAI 2021"
    space = PropagatedMethod.space | {"shrinkage": Range(0.3, 0.95)}
    defaults_on = extended(with_rates(digits=1e-7, mnist=1e-8, fashion_mnist=1e-9, cifar10=1e-8), ON_FEATURES)
    Settings = APLLRSettings
    settings: APLLRSettings

    def prior(self, features: Tensor, classes: Tensor, scatters: PairScatters) -> Tensor | None:
        """The clipped difference of inverse scatters."""
        return likelihood_ratio_prior(scatters.similar, scatters.dissimilar, self.settings.shrinkage)
