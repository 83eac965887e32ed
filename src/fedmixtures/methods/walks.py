"""Numbers that diffuse over live edges: alike at two nodes that many ways lead between.

Every node begins with numbers drawn from its label. Step by step it takes the mean of its own and
those of its live neighbours. Inside a group all soon have nearly the same numbers; at the two ends
of a single edge between large groups they stay those of each group (Pons and Latapy 2005: what
short random walks see). Numbers are whole, so that no total hangs on an order.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fedmixtures._types import Array
from fedmixtures.kernels.arrays import jit_on_gpu, xp

WIDTH = 32
"""Numbers of a node."""
STEPS = 15
UNIT = 1 << 20
"""What no number exceeds."""


@jit_on_gpu
def begun(hashes: Array) -> Any:
    """(nodes, WIDTH) plus or minus `UNIT`, by the bits of a label's hash."""
    place = xp.arange(64 - WIDTH, 64, dtype=np.uint64)
    bit = (xp.asarray(hashes)[:, None] >> place) & np.uint64(1)
    return xp.where(bit == 1, UNIT, -UNIT).astype(np.int32)


@jit_on_gpu
def moved(numbers: Array, heard: Array, degree: Array) -> Any:
    """(nodes, WIDTH) after a step, from the totals over live neighbours, and how many they are."""
    return ((numbers + heard) // (degree[:, None] + 1)).astype(np.int32)


@jit_on_gpu
def alike(one: Array, other: Array) -> Any:
    """(edges,) cosine between the numbers at the ends of edges, (edges, WIDTH) each."""
    one, other = one.astype(np.float64), other.astype(np.float64)
    lengths = (one * one).sum(1) * (other * other).sum(1)
    return (one * other).sum(1) / xp.sqrt(xp.maximum(lengths, 1.0))
