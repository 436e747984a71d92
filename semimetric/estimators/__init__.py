"""The scikit-learn front door."""
