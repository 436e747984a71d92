"""What a fitted model is, and its run folder."""
