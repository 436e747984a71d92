"""Methods by name. A new method is one new file and one line here."""

from __future__ import annotations

from typing import Any

from semimetric.core.checks import check_choice
from semimetric.core.settings import build_settings
from semimetric.methods.affinity_triplets import AffinityTriplets
from semimetric.methods.angular import Angular
from semimetric.methods.apit import APIT
from semimetric.methods.apllr import APLLR
from semimetric.methods.base import Method
from semimetric.methods.consensus import Consensus
from semimetric.methods.deepcluster import DeepCluster
from semimetric.methods.exemplar import Exemplar
from semimetric.methods.instance import Instance
from semimetric.methods.isdml import ISDML
from semimetric.methods.lrml import LRML
from semimetric.methods.rotation import Rotation
from semimetric.methods.seraph import SERAPH
from semimetric.methods.synthetic import Synthetic
from semimetric.methods.triplet import SemiHardTriplets

METHODS: dict[str, type[Method[Any]]] = {
    method.name: method
    for method in (
        Consensus,
        AffinityTriplets,
        LRML,
        SERAPH,
        ISDML,
        APLLR,
        APIT,
        SemiHardTriplets,
        Angular,
        Exemplar,
        Rotation,
        Instance,
        DeepCluster,
        Synthetic,
    )
}


def method_names() -> tuple[str, ...]:
    """Names that ``build_method`` knows."""
    return tuple(METHODS)


def build_method(name: str, **settings: Any) -> Method[Any]:
    """The named method with the given hyper-parameters, the others at their defaults."""
    check_choice(name, method_names(), "method")
    kind = METHODS[name]
    return kind(build_settings(kind.Settings, settings, f"method {name!r}"))
