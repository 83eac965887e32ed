"""Where the iteration starts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from fedmixtures.data.node_data import NodeData
from fedmixtures.mixture.mixture import Mixture


@runtime_checkable
class Start(Protocol):
    """Whatever makes starting mixtures of rows: `KMeansStart`, or the fits of `Local`."""

    def mixtures(
        self, data: NodeData, n_components: Sequence[int], seed: int, default_ridge: float
    ) -> Mixture:
        """Those of all nodes, stacked; `default_ridge` is what the method can bear at least."""
        ...
