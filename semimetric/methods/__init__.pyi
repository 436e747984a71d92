from semimetric.methods.base import Constraints, Method, Needs
from semimetric.methods.registry import METHODS, build_method, method_names

__all__ = ["METHODS", "Constraints", "Method", "Needs", "build_method", "method_names"]
