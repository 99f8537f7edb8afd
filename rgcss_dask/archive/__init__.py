"""Stored moments, checkpoints of a pass, and results."""
