"""What is kept: moments, results and matrices, as whole files with checksums."""
