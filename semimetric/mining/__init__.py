"""Pairs and triplets, mined from a graph or from labels."""

from semimetric.core.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
