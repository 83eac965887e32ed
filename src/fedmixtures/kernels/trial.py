"""Kernels written for a GPU are tried on it before they are relied on.

A kernel of our own may be refused by a compiler or a GPU that we have not seen. Each comes with a
trial: a few nodes, worked out by the kernel and by the plain form behind the same function. If the
two differ, or the kernel does not compile, a warning says so and the plain form is used.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np

from fedmixtures.mixture.arithmetic import precision
from fedmixtures.mixture.mixture import Mixture

_found: dict[tuple[Callable[..., None], int, int, str], str] = {}
"""What every trial so far ended with: why the kernel is left out, or nothing if it is used."""


def passes(trial: Callable[..., None], k: int, d: int, dtype: Any) -> bool:
    """Whether `trial` runs through for `k` components and `d` features; it is run only once."""
    key = (trial, k, d, str(dtype))
    if key not in _found:
        # A thread of its own: a program that is being compiled around us cannot run anything.
        with ThreadPoolExecutor(1) as pool:
            try:
                pool.submit(trial, k, d, str(dtype)).result()
                _found[key] = ""
            except Exception as error:
                _found[key] = str(error)[:500] or repr(error)
                warnings.warn(
                    f"a GPU kernel is left out ({_name(*key)}), its plain form is slower: "
                    f"{_found[key]}",
                    RuntimeWarning,
                    stacklevel=2,
                )
    return not _found[key]


def outcomes() -> dict[str, str]:
    """For every kernel that was asked for so far: ``"kernel"``, or why its plain form is used."""
    return {_name(*key): reason or "kernel" for key, reason in _found.items()}


def _name(trial: Callable[..., None], k: int, d: int, dtype: str) -> str:
    return f"{trial.__module__}, k={k}, d={d}, {dtype}"


def compare(
    kernel: Callable[..., Any], plain: Callable[..., Any], dtype: str, *inputs: Any
) -> None:
    """Raise if the two give different numbers for the same inputs (NumPy arrays or keys)."""

    def result(form: Callable[..., Any]) -> Any:
        with precision(dtype):  # of each thread by itself
            return jax.jit(form)(*inputs)

    with ThreadPoolExecutor(2) as pool:  # compiling takes nearly all the time
        found, wanted = pool.map(result, (kernel, plain))
    tolerance = 1e-3 if dtype == "float32" else 1e-9
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        scale = 1 + np.abs(b).max()
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * scale)


def some_mixtures(rng: np.random.Generator, dtype: str, *shape: int) -> Mixture:
    """Random mixtures of shape (..., k, d), in this precision."""
    *batch, k, d = shape
    root = rng.normal(size=(*batch, k, d, d))
    covariances = root @ np.swapaxes(root, -1, -2) / d + 0.5 * np.eye(d)
    parts = (rng.dirichlet(np.ones(k), batch), 2 * rng.normal(size=(*batch, k, d)), covariances)
    one = Mixture(*parts)
    return jax.tree.map(lambda part: part.astype(dtype), one)
