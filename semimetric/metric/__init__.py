"""Mahalanobis metrics as factors L with M = L L^T, their constraint sets, and the solvers that learn them."""

from semimetric.core.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
