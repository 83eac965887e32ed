"""Precision for the length of a block, never for the whole process."""

from __future__ import annotations

from contextlib import AbstractContextManager

import jax


def double() -> AbstractContextManager:
    """Compute in float64 inside this block, whatever JAX is set to outside."""
    return jax.enable_x64(True)


def precision(dtype: str) -> AbstractContextManager:
    """Compute in `dtype`, ``"float64"`` or ``"float32"``, inside this block."""
    return jax.enable_x64(dtype == "float64")
