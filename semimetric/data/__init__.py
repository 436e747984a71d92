"""What the examples are: benchmark datasets, labelled and unlabelled splits, input scaling, augmented views."""

from semimetric.core.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
