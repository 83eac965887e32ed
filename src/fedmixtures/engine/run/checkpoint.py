"""What it takes to go on with a run exactly where it stopped."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedmixtures.data.node_data import NodeData
from fedmixtures.graph.network import Network


@dataclass(frozen=True)
class Checkpoint:
    """The states after some round, as plain arrays, and the record up to it."""

    round: int
    fingerprint: str
    """Identifies rows, graph, method and seed: another run is not resumed by mistake."""
    states: tuple[np.ndarray, ...]
    trace: dict[str, np.ndarray]

    def restored(self, like: Any) -> Any:
        """The states in the shape of the program's own, bit for bit."""
        leaves, structure = jax.tree.flatten(like)
        return jax.tree.unflatten(
            structure,
            [
                jnp.asarray(new, old.dtype).reshape(old.shape)  # files know no scalars
                for new, old in zip(self.states, leaves, strict=True)
            ],
        )


def fingerprint(program: Any, data: NodeData, network: Network, *settings: Any) -> str:
    """A digest of everything that decides the numbers of a run but its length."""
    digest = hashlib.sha256()
    arrays = (data.rows, data.row_weights, data.offsets)
    for array in (*arrays, network.source, network.target, network.weight):
        digest.update(np.ascontiguousarray(array).tobytes())
    digest.update(repr((data.labels, program, settings)).encode())
    return digest.hexdigest()
