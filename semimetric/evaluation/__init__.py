"""Evaluation of embeddings, detection of their collapse, and the estimated accuracy of pseudo-labels."""

from semimetric.core.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
