"""Methods by name. Methods of this package are listed here, others are registered or offered as entry points."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, TypeVar

from semimetric.core.errors import InputError
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
        "stml": "semimetric.methods.stml:STML",
        "synthetic": "semimetric.methods.synthetic:Synthetic",
    },
)

M = TypeVar("M", bound="type[Method[Any]]")


def method_names() -> tuple[str, ...]:
    """Names that ``build_method`` accepts."""
    return tuple(METHODS)


def build_method(name: str, **settings: Any) -> Method[Any]:
    """A method by its name.

    Parameters
    ----------
    name : str
        One of ``semimetric methods``.
    **settings
        Hyper-parameters; the others keep their defaults.
    """
    kind = METHODS.find(name)
    check_method(kind)
    return kind(build_settings(kind.Settings, settings, f"method {name!r}"))


def register_method(kind: M) -> M:
    """Make a method known under its ``name``, and return it; also works as a class decorator.

    Parameters
    ----------
    kind : type
        A class derived from ``semimetric.methods.Method``.
    """
    check_method(kind)
    METHODS.register(kind.name, kind)
    return kind


def check_method(kind: Any) -> None:
    """Refuse a class that lacks something that every method must have."""
    from semimetric.methods.base import LearnsFromAverage, LearnsMetric, Method, PredictsClasses

    if not (isinstance(kind, type) and issubclass(kind, Method)):
        raise InputError(f"a method must be a class derived from semimetric.methods.Method, got {kind!r}.")
    required = ("name", "summary", "reference", "needs", "Settings")
    missing = [name for name in required if not hasattr(kind, name)] + sorted(kind.__abstractmethods__)
    if missing:
        raise InputError(f"method class {kind.__name__} lacks {', '.join(missing)}. Define them in the class.")
    bases = {"update_metric": LearnsMetric, "posteriors": PredictsClasses, "teach": LearnsFromAverage}
    for name in (name for name, base in bases.items() if hasattr(kind, name) and not issubclass(kind, base)):
        raise InputError(f"{kind.__name__}.{name} is never called. Derive the class from {bases[name].__name__}.")
    if not (isinstance(kind.Settings, type) and dataclasses.is_dataclass(kind.Settings)):
        raise InputError(f"{kind.__name__}.Settings must be a dataclass, got {kind.Settings!r}.")
    silent = [field.name for field in dataclasses.fields(kind.Settings) if not field.metadata.get("help")]
    if silent:
        raise InputError(
            f"{kind.__name__}.Settings has fields without a help sentence: {', '.join(silent)}. Define each with "
            'semimetric.core.settings.setting(default, "Help sentence.").'
        )
