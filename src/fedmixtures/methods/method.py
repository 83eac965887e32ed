"""What every entry of the estimator's `method` slot can say about itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import equinox as eqx
import numpy as np

from fedmixtures._types import Label
from fedmixtures.data.node_data import NodeData, label_hash
from fedmixtures.graph.network import Network
from fedmixtures.mixture.mixture import Mixture


@dataclass(frozen=True)
class Meeting:
    """What is known about the nodes before the first round."""

    labels: tuple[Label, ...]
    rows: np.ndarray
    """Sum of the sample weights of each node."""
    degree: np.ndarray
    """Neighbours of each node."""
    seed: int

    @property
    def order(self) -> np.ndarray:
        """Nodes in an order that depends on their labels alone."""
        return np.argsort([label_hash(label) for label in self.labels], kind="stable")


@dataclass(frozen=True)
class Prepared:
    """What nodes begin with once they (or their hub) have agreed on it."""

    theta: Mixture
    """Starting mixtures of all nodes, stacked, NumPy."""
    shared: Any = None
    """Arrays the hub sends to every node before the first round."""
    hub_state: Any = None
    """Arrays the hub keeps."""
    sent: np.ndarray | int = 0
    """Numbers (8 bytes each in float64) each node sent to get there."""
    received: np.ndarray | int = 0
    """Numbers the hub sent to each node."""


class Method(eqx.Module):
    """A way to fit all nodes' mixtures: a node program, a hub program or a one-shot method."""

    has_likelihood: ClassVar[bool] = True
    """Whether the mixtures are densities to be scored; false for hard clustering."""
    moves_rows: ClassVar[bool] = False
    """Whether rows leave their nodes."""

    def program(self) -> Method:
        """What an engine runs: the method itself, unless an option chooses among programs."""
        return self

    def check(self, n_components: Sequence[int], network: Network) -> None:
        """Refuse what cannot work, before any work is done."""
        del n_components, network

    def bounded(self, data: NodeData, n_components: Sequence[int]) -> Method:
        """The same method with what it takes from the rows before it begins; by default nothing."""
        del data, n_components
        return self

    def prepare(self, theta: Mixture, meeting: Meeting) -> Prepared:
        """What nodes settle before the first round; by default nothing, and nothing is sent."""
        del meeting
        return Prepared(theta)

    @property
    def needs_start(self) -> bool:
        """Whether nodes begin from the starting mixtures of the estimator's `init`."""
        return True

    @property
    def pull_share(self) -> float:
        """Share of all pulls in the objective: a half where edges count from both ends."""
        return 1.0

    @property
    def rate(self) -> float | None:
        """Step size of a gradient method; None for others and where the engine finds it."""
        return None

    @property
    def adaptive(self) -> bool:
        """Whether the engine is to find a step size that lowers the objective."""
        return False

    @property
    def descends(self) -> bool:
        """Whether an objective far above its start means that the run has gone wrong."""
        return True

    @property
    def opening_rounds(self) -> int:
        """Rounds before which standing still says nothing about convergence."""
        return 0

    @property
    def certifiable(self) -> bool:
        """Whether Proposition 1 speaks about this program."""
        return False

    def remedy(self, weighted_degree: float) -> str:
        """What to change if the run diverges at a node of this weighted degree."""
        del weighted_degree
        return "Look at the rows of that node."
