"""What one process shares: its processors, BLAS, its memory and its identity. Nothing of the package is imported."""
