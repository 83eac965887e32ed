"""Peers: Algorithm 1 as a user would write it without the package. The package never imports them.

Each module has a class with ``name``, a constructor ``(problem, coupling, dtype)`` and ``run()``,
which returns weights, means and covariances of all nodes as NumPy arrays.
"""
