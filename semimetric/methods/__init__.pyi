from semimetric.methods.base import Constraints, LearnsMetric, Method, Needs, PredictsClasses
from semimetric.methods.baseline import Targets
from semimetric.methods.registry import METHODS, build_method, method_names, register_method

__all__ = [
    "METHODS",
    "Constraints",
    "LearnsMetric",
    "Method",
    "Needs",
    "PredictsClasses",
    "Targets",
    "build_method",
    "method_names",
    "register_method",
]
