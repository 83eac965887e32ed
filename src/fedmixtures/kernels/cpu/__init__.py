"""Kernels for a CPU: vectors over rows, pairs or nodes, which stand last."""
