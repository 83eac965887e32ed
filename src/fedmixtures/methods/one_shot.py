"""Methods without rounds: data in, mixtures out, at most one upload and one reply."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedmixtures.data.node_data import NodeData
from fedmixtures.methods.method import Method
from fedmixtures.mixture.mixture import Mixture


@dataclass(frozen=True)
class Outcome:
    """What a one-shot method hands back."""

    theta: Mixture
    """Stack of the nodes' mixtures, NumPy."""
    sent: np.ndarray
    """Numbers each node sent to the hub (8 bytes each in float64)."""
    received: np.ndarray
    """Numbers the hub sent to each node."""
    message: str = ""
    """What the user should know: turned into a warning."""


class OneShot(Method):
    """All nodes are fitted at once; `n_rounds` plays no part."""

    @property
    @abc.abstractmethod
    def recipients(self) -> Literal["hub", "nobody"]:
        """Who receives what nodes send."""

    @abc.abstractmethod
    def fit(
        self, data: NodeData, n_components: Sequence[int], theta: Mixture | None, seed: int
    ) -> Outcome:
        """Fit the nodes' mixtures; `theta` holds starting mixtures where the user gave some."""
