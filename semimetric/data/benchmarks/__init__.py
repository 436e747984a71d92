"""The benchmark datasets."""
