"""Runnable examples; `python -m examples.paper` reruns the paper, `python -m examples.benchmarks` measures peers."""
