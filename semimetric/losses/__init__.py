"""Losses: pure functions of embeddings and of triplets or targets."""

from semimetric.core.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
