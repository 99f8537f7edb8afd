"""What is kept of a matrix: moments, checkpoints on the way to them, and results."""
