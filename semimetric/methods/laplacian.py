"""Base of LRML and ISDML: labelled pairs, a graph of all examples, and a metric in closed form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from semimetric.core.checks import check_at_least, check_fraction, check_not_negative
from semimetric.core.errors import InputError
from semimetric.core.settings import setting
from semimetric.core.space import Range
from semimetric.methods.base import Needs
from semimetric.methods.defaults import SLOW
from semimetric.methods.pairs import PairMethod, Pairs, PairSettings
from semimetric.metric import Metric, Span, largest_weight, minimize_with_unit_determinant, pair_means

FLAT = 1e-6  # smallest eigenvalue of the problem's matrix, as a share of their mean


@dataclass(frozen=True)
class LaplacianSettings(PairSettings):
    """Hyper-parameters of LRML and ISDML."""

    k: int = setting(10, "Neighbours per node of the graph.")
    dissimilar_weight: float = setting(1.0, "Weight g_D of dissimilar pairs relative to similar pairs.")
    bounded_share: float = setting(
        0.5, "Upper bound of dissimilar_weight, as a share of the weight at which the problem is unbounded, in (0, 1)."
    )
    graph_weight: float = setting(3.0, "Weight g_L of the graph relative to similar pairs.")
    ridge: float = setting(0.3, "Weight of the trace of M, in units of the mean eigenvalue of the problem's matrix.")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self.k, 1, "k")
        for name in ("dissimilar_weight", "graph_weight", "ridge"):
            check_not_negative(getattr(self, name), name)
        check_fraction(self.bounded_share, "bounded_share")


class LaplacianMethod(PairMethod[Pairs]):
    """Similar pairs close, dissimilar pairs apart, neighbours in the graph close, and log det M >= 0.

    The metric minimises tr(M B) with B = S_s - g_D S_d + g_L R + r I, in closed form where B is positive definite.
    Otherwise the problem has no minimiser, so g_D is capped. The encoder minimises tr(M B) too, with the same g_D. The
    page of LRML in ``docs/methods`` has the formulae and the differences from the original.
    """

    needs = Needs(labels=True, unlabelled=True, graph=True)
    space = SLOW | {"k": Range(3, 20), "graph_weight": Range(0.1, 30.0, log=True), "ridge": Range(0.01, 3.0, log=True)}
    Settings: ClassVar[type[Any]] = LaplacianSettings
    settings: LaplacianSettings
    dissimilar_weight: Tensor

    def __init__(self, settings: LaplacianSettings | None = None) -> None:
        super().__init__(settings)
        self.register_buffer("dissimilar_weight", torch.tensor(self.settings.dissimilar_weight, dtype=torch.float64))

    def update_metric(self, metric: Metric, features: Tensor, constraints: Pairs) -> Metric:
        """The minimiser in closed form, whatever the current metric.

        With fewer examples than features all but the ridge lies in the span of the examples, and so do the matrices.
        """
        width, span = features.shape[1], Span.of(features.double())
        points = span.coordinates(features.double())
        base, dissimilar = self._parts(points, constraints, width)
        ridge = self.settings.ridge * float(base.trace()) / (width + self.settings.ridge * len(base))
        floor = FLAT * (float(base.trace()) + (width - len(base)) * ridge) / width
        weight = self._bounded_weight(base, dissimilar, floor)
        self.dissimilar_weight.fill_(weight)
        matrix, rest, flat = minimize_with_unit_determinant(base - weight * dissimilar, floor, ridge, width - len(base))
        if flat:
            self.bind_guard(
                "flat_directions",
                f"{self.name}: examples of one class, and neighbours, do not differ along {flat} of {width} "
                "directions (features of low rank, or duplicates), where the problem has no solution; a small "
                "difference is assumed. A larger ridge helps.",
            )
        return self._metric(matrix, points, span, rest)

    def _parts(self, features: Tensor, constraints: Pairs, width: int) -> tuple[Tensor, Tensor]:
        """S_s + g_L R + r I, and S_d, in the span of the features, of which there are ``width``."""
        scatters = self._scatters(features, constraints)
        base = scatters.similar + self.settings.graph_weight * constraints.form(features)
        mean = base.trace() / width
        if not mean > 0:
            raise InputError(
                f"method {self.name!r} cannot learn a metric: examples of one class, and neighbours, have the same "
                "features. Check the features, or set graph_weight above 0."
            )
        return base + self.settings.ridge * mean * torch.eye(len(base)).to(base), scatters.dissimilar

    def _bounded_weight(self, base: Tensor, dissimilar: Tensor, floor: float) -> float:
        """g_D, capped so that the problem has a minimiser."""
        solid = base + floor * torch.eye(len(base)).to(base)
        wanted = self.settings.dissimilar_weight
        most = self.settings.bounded_share * largest_weight(solid, dissimilar)
        if wanted <= most:
            return wanted
        self.bind_guard(
            "dissimilar_weight_capped",
            f"{self.name}: dissimilar_weight {wanted:g} is above {self.settings.bounded_share:g} of the weight at "
            f"which the problem becomes unbounded on these features; {most:.3g} is used instead.",
        )
        return most

    def loss(self, metric: Metric, features: Tensor, constraints: Pairs) -> Tensor:
        """tr(M B) without its ridge, times the number of pairs: a sum over the batch, like the paper's loss."""
        embeddings = metric.transform(features)
        similar, dissimilar = pair_means(embeddings[constraints.labelled], constraints.classes)
        weight = self.dissimilar_weight.to(embeddings.dtype)
        mean = similar - weight * dissimilar + self.settings.graph_weight * constraints.energy(embeddings)
        return len(constraints) * mean

    def on_epoch_end(self) -> dict[str, float]:
        """The g_D of the last metric step."""
        return {"dissimilar_weight": float(self.dissimilar_weight)}

    def statistics(self, metric: Metric, features: Tensor, constraints: Pairs) -> dict[str, float]:
        """Also the mean squared length of the edges."""
        energy = float(constraints.energy(metric.transform(features)))
        return super().statistics(metric, features, constraints) | {"edge_distance": energy}
