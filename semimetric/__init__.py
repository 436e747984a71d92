"""Semi-supervised deep metric learning: an embedding from a few labels and many unlabelled examples."""

__version__ = "0.1.0"
