"""Neighbours graphs, label propagation and affinity propagation."""

from semimetric.core.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
