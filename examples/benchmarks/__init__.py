"""Side by side with what one would use instead: `python -m examples.benchmarks`."""
