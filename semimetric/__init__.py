"""Semi-supervised deep metric learning: an embedding from a few labels and many unlabelled examples."""

from semimetric.core.lazy import attach

__version__ = "0.2.0.dev0"

__getattr__, __dir__, __all__ = attach(__name__, __file__)
