"""Methods by name. A new method is one new file and one line here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from semimetric.core.registry import Registry
from semimetric.core.settings import build_settings

if TYPE_CHECKING:
    from semimetric.methods.base import Method

METHODS: Registry[type[Method[Any]]] = Registry(
    "method",
    "semimetric.methods",
    {
        "consensus": "semimetric.methods.consensus:Consensus",
        "affinity-triplets": "semimetric.methods.affinity_triplets:AffinityTriplets",
        "lrml": "semimetric.methods.lrml:LRML",
        "seraph": "semimetric.methods.seraph:SERAPH",
        "isdml": "semimetric.methods.isdml:ISDML",
        "apllr": "semimetric.methods.apllr:APLLR",
        "apit": "semimetric.methods.apit:APIT",
        "triplet": "semimetric.methods.triplet:SemiHardTriplets",
        "angular": "semimetric.methods.angular:Angular",
        "exemplar": "semimetric.methods.exemplar:Exemplar",
        "rotation": "semimetric.methods.rotation:Rotation",
        "instance": "semimetric.methods.instance:Instance",
        "deepcluster": "semimetric.methods.deepcluster:DeepCluster",
        "synthetic": "semimetric.methods.synthetic:Synthetic",
    },
)


def method_names() -> tuple[str, ...]:
    """Names that ``build_method`` knows."""
    return tuple(METHODS)


def build_method(name: str, **settings: Any) -> Method[Any]:
    """The named method with the given hyper-parameters, the others at their defaults."""
    kind = METHODS.find(name)
    return kind(build_settings(kind.Settings, settings, f"method {name!r}"))
