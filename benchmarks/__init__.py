"""Benchmarks: the package against what a user would write: ``python -m benchmarks``."""
