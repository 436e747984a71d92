"""What LRML and ISDML share: labelled pairs, a graph of all examples, and a metric in closed form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from semimetric.core.checks import check_fraction, check_not_negative
from semimetric.core.errors import InputError
from semimetric.core.settings import setting
from semimetric.methods.base import Needs, check_neighbor_count
from semimetric.methods.pairs import PairMethod, Pairs, PairSettings
from semimetric.metric import Metric, largest_weight, minimize_with_unit_determinant, pair_means

FLAT = 1e-6
"""Eigenvalues of the problem's matrix are at least this share of their mean."""


@dataclass(frozen=True)
class LaplacianSettings(PairSettings):
    """Hyper-parameters that LRML and ISDML have in common."""

    k: int = setting(10, "Neighbours per node of the graph.")
    dissimilar_weight: float = setting(1.0, "Weight g_D of dissimilar pairs beside similar ones.")
    bounded_share: float = setting(
        0.5, "Cap on the weight of dissimilar pairs, as a share of the one at which no metric is best, in (0, 1)."
    )
    graph_weight: float = setting(3.0, "Weight g_L of the graph beside similar pairs.")
    ridge: float = setting(0.3, "Weight of the trace of M, in units of the mean eigenvalue of the metric's problem.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.k < 1:
            raise InputError(f"k must be at least 1, got {self.k}.")
        for name in ("dissimilar_weight", "graph_weight", "ridge"):
            check_not_negative(getattr(self, name), name)
        check_fraction(self.bounded_share, "bounded_share")


class LaplacianMethod(PairMethod[Pairs]):
    r"""Similar pairs close, dissimilar pairs apart, neighbours in the graph close, and log det M >= 0.

    The metric minimises tr(M B) over log det M >= 0, with

        B = S_s - g_D S_d + g_L R + r I

    where S_s, S_d and R are means of v v^T over similar pairs, dissimilar pairs and edges, and r is ``ridge`` times the
    mean eigenvalue of S_s + g_L R. Where B is positive definite the minimiser is det(B)^(1/d) B^-1, by the inequality
    of arithmetic and geometric means. Where it is not the problem has no minimiser, so that g_D is capped at
    ``bounded_share`` of the weight at which that begins. The encoder minimises tr(M B) too, with the same g_D.

    The objective without its ridge is the originals'; means instead of sums, closed form, cap and ridge are ours.
    """

    needs = Needs(labels=True, unlabelled=True, graph=True)
    Settings: ClassVar[type[Any]] = LaplacianSettings
    settings: LaplacianSettings
    dissimilar_weight: Tensor

    def __init__(self, settings: LaplacianSettings | None = None) -> None:
        super().__init__(settings)
        weight = torch.tensor(self.settings.dissimilar_weight, dtype=torch.float64)
        self.register_buffer("dissimilar_weight", weight)

    def check_working_set(self, labelled: int, unlabelled: int) -> None:
        """Every example needs k others."""
        check_neighbor_count(self.settings.k, labelled + unlabelled)

    def update_metric(self, metric: Metric, features: Tensor, constraints: Pairs) -> Metric:
        """The minimiser, in closed form; the metric so far does not matter."""
        base, dissimilar = self._parts(features, constraints)
        weight = self._bounded_weight(base, dissimilar)
        self.dissimilar_weight.fill_(weight)
        matrix, flat = minimize_with_unit_determinant(base - weight * dissimilar, FLAT * float(base.diagonal().mean()))
        if flat:
            self.bind_guard(
                "flat_directions",
                f"{self.name}: examples of one class, and neighbours, do not differ along {flat} of {len(base)} "
                "directions (features of low rank, or duplicates), so that no metric is best there; they are "
                "treated as if they differed a little. A larger ridge helps.",
            )
        return self._metric(matrix, features)

    def _parts(self, features: Tensor, constraints: Pairs) -> tuple[Tensor, Tensor]:
        """S_s + g_L R + r I, and S_d."""
        scatters = self._scatters(features, constraints)
        base = scatters.similar + self.settings.graph_weight * constraints.form(features)
        mean = base.diagonal().mean()
        if not mean > 0:
            raise InputError(
                f"method {self.name!r} finds no difference between examples of one class or between neighbours, so "
                "that there is nothing to learn a metric from. Check the features, or give graph_weight a "
                "positive value."
            )
        return base + self.settings.ridge * mean * torch.eye(len(base)).to(base), scatters.dissimilar

    def _bounded_weight(self, base: Tensor, dissimilar: Tensor) -> float:
        """g_D, capped where the problem has no minimiser."""
        solid = base + FLAT * base.diagonal().mean() * torch.eye(len(base)).to(base)
        wanted = self.settings.dissimilar_weight
        most = self.settings.bounded_share * largest_weight(solid, dissimilar)
        if wanted <= most:
            return wanted
        self.bind_guard(
            "dissimilar_weight_capped",
            f"{self.name}: dissimilar_weight {wanted:g} is above {self.settings.bounded_share:g} of the weight at "
            f"which no metric is best on these features any more; {most:.3g} is used instead.",
        )
        return most

    def loss(self, metric: Metric, features: Tensor, constraints: Pairs) -> Tensor:
        """tr(M B) without its ridge, times the number of pairs: like the paper's loss a sum over the batch."""
        embeddings = metric.transform(features)
        similar, dissimilar = pair_means(embeddings[constraints.labelled], constraints.classes)
        weight = self.dissimilar_weight.to(embeddings.dtype)
        mean = similar - weight * dissimilar + self.settings.graph_weight * constraints.energy(embeddings)
        return len(constraints) * mean

    def metric_objective(self, metric: Metric, features: Tensor, constraints: Pairs) -> float:
        """tr(M B), with the g_D in use."""
        base, dissimilar = self._parts(features, constraints)
        return float((metric.matrix * (base - self.dissimilar_weight * dissimilar)).sum())

    def in_use(self) -> dict[str, float]:
        """The g_D of the last metric step."""
        return {"dissimilar_weight": float(self.dissimilar_weight)}

    def statistics(self, metric: Metric, features: Tensor, constraints: Pairs) -> dict[str, float]:
        """Distances under the metric, its trace and rank."""
        energy = float(constraints.energy(metric.transform(features)))
        return super().statistics(metric, features, constraints) | {"edge_distance": energy}
