"""Scores of an embedding, signs of its collapse, and how far to trust propagated labels."""

from semimetric.core.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
