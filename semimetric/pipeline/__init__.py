"""From what a user asks for to a fitted model."""
