"""Choices that rounding cannot change: of candidates that are equal up to rounding, the first.

Two restarts that end in the same clustering, two neighbours at the same distance, two components
with equal weight in a row: their scores differ in the last bits at most, and those bits depend on
the processor, the number of threads and what else is in the batch. So numbers are compared with a
margin, far above rounding and far below any difference that means something.

`scale` is the size of the terms that a number was summed up from, where they may cancel.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from fedmixtures._types import Array

Number: TypeAlias = Array | np.number | float | int


def margin(dtype) -> float:
    """The relative difference up to which two numbers count as equal."""
    return 1e-9 if np.dtype(dtype).itemsize >= 8 else 3e-5


def clearly_less(a: Number, b: Number, scale: Number = 0.0):
    """Whether `a` is below `b`, both finite, by more than rounding; also inside a kernel."""
    xp = jnp if isinstance(b, jax.Array) or isinstance(a, jax.Array) else np
    size = xp.maximum(abs(b), scale)
    return a < b - margin(xp.result_type(a, b)) * size


def first_least(
    costs: Float[Array, ...], axis: int = -1, scale: Number = 0.0, within: float | None = None
) -> Any:
    """Where the least stands along an axis: the first of those that are equal up to rounding.

    `scale` has the shape of the result, or is one number. `within` is the margin where it is to be
    the same in any precision. NumPy gives NumPy, JAX gives JAX.
    """
    xp = jnp if isinstance(costs, jax.Array) else np
    least = costs.min(axis, keepdims=True)
    size = xp.maximum(abs(least), xp.expand_dims(scale, axis) if np.ndim(scale) else scale)
    finite = xp.isfinite(least)
    width = margin(costs.dtype) if within is None else within
    most = least + xp.where(finite, width * xp.where(finite, size, 0.0), 0.0)
    return (costs <= most).argmax(axis)


def first_greatest(
    scores: Float[Array, ...], axis: int = -1, scale: Number = 0.0, within: float | None = None
) -> Any:
    """Index of the first among the greatest scores along `axis`; see `first_least`."""
    return first_least(-scores, axis, scale, within)


def in_order(values: np.ndarray, scale: float = 0.0) -> Int[np.ndarray, " n"]:
    """The order that sorts ascending; equals up to rounding stay as they stand."""
    values = np.asarray(values, dtype=np.float64)
    order = np.argsort(values, kind="stable")
    ascending = values[order]
    larger = clearly_less(ascending[:-1], ascending[1:], scale)
    level = np.concatenate([np.zeros(min(len(values), 1), int), np.cumsum(larger)])
    return order[np.lexsort((order, level))]


def first_matching(cost: Float[np.ndarray, "k k"]) -> Int[np.ndarray, " k"]:
    """The column paired with each row, least total cost; among equals the order is kept.

    Between two equal matchings a small share of the typical cost decides, in favour of the one that
    pairs low rows with low columns.
    """
    from scipy.optimize import linear_sum_assignment

    return linear_sum_assignment(cost + order_preference(cost))[1]


def order_preference(cost: Float[Array, "k k"]) -> Float[Array, "k k"]:
    """What `first_matching` adds to a cost.

    Minus the product of two rising, irregular sequences: any exchange that leads away from the
    order raises the total, and no two matchings gain the same.
    """
    k = cost.shape[0]
    place = np.sqrt(np.arange(1, k + 1))
    rising = np.outer(place, np.log1p(place)).astype(cost.dtype) / k
    return -margin(cost.dtype) * abs(cost).mean() * rising
