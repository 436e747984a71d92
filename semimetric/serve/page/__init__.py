"""The page of a run: search, look and label in a browser on this machine."""
