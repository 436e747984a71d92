"""What the paper published, and the experiments that answer it."""
