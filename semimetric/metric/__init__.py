"""Mahalanobis metrics as factors L with M = L L^T, the sets they live on, and the solver that learns them."""

from semimetric.core.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
