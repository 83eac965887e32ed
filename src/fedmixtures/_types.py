"""The vocabulary of shapes: nodes, k components, d features, m rows, s neighbour slots."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TypeAlias

import jax
import numpy as np
from jaxtyping import Float, Key

Array: TypeAlias = jax.Array | np.ndarray

Device: TypeAlias = jax.Device  # pyright: ignore[reportInvalidTypeForm]  # JAX has no types for it

Label: TypeAlias = Hashable
"""What names a node: a string, an integer, anything hashable with a stable ``repr``."""

Weights: TypeAlias = Float[Array, "*nodes k"]
Means: TypeAlias = Float[Array, "*nodes k d"]
Covariances: TypeAlias = Float[Array, "*nodes k g g"]
"""Of the continuous features, which come first; others are one-hot columns of categories."""

Rows: TypeAlias = Float[Array, "nodes m d"]
RowWeights: TypeAlias = Float[Array, "nodes m"]

PerNode: TypeAlias = Float[Array, " nodes"]
PerSlot: TypeAlias = Float[Array, "nodes s"]
NodeKeys: TypeAlias = Key[Array, " nodes"]
SlotKeys: TypeAlias = Key[Array, "nodes s"]

Scalar: TypeAlias = Float[Array, ""]
