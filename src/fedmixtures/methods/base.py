"""What every method is, what it says about itself, and what it hands back.

Programs that run in rounds are in `programs`, those that are written from top to bottom in
`protocol`.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import equinox as eqx
import numpy as np

from fedmixtures import _checks
from fedmixtures._types import Label
from fedmixtures.data.node_data import NodeData, label_hash
from fedmixtures.graph.network import Network
from fedmixtures.mixture.covariance_types import check_type
from fedmixtures.mixture.feasible import FeasibleSet
from fedmixtures.mixture.mixture import Mixture


@dataclass(frozen=True)
class Participants:
    """What is known about the nodes before the first round."""

    labels: tuple[Label, ...]
    rows: np.ndarray  # sum of the sample weights of each node
    degree: np.ndarray  # neighbours of each node
    seed: int

    @property
    def order(self) -> np.ndarray:
        """Nodes in an order that depends on their labels alone."""
        return np.argsort([label_hash(label) for label in self.labels], kind="stable")


@dataclass(frozen=True)
class Prepared:
    """What nodes begin with once they (or their hub) have agreed on it."""

    theta: Mixture  # starting mixtures of all nodes, stacked, NumPy
    shared: Any = None  # arrays the hub sends to every node before the first round
    hub_state: Any = None  # arrays the hub keeps
    sent: np.ndarray | int = 0  # numbers (8 bytes each in float64) each node sent to get there
    received: np.ndarray | int = 0  # numbers the hub sent to each node


class Backtracking(eqx.Module):
    r"""Step sizes by search: a round counts only if it lowers the objective enough.

    With step $\eta$ and $T_{loc}$ local steps, enough is $\|\Theta_t - \Theta_{t+1}\|^2 /
    (2 \eta T_{loc})$; for one local step that is the decrease Proposition 1 rests on. The step is
    shortened until it is, and tried a little longer in the next round.
    """

    first: float = 1.0
    smallest: float = 1e-10  # the search, and with it the run, ends below this step
    shorter: float = 0.5
    longer: float = 1.25

    def accepts(self, decrease: float, moved: float, rate: float, n_local_steps: int) -> bool:
        """Whether the objective fell by enough for a move of this squared length."""
        return decrease >= moved / (2 * rate * n_local_steps)


class Method(eqx.Module):
    """A way to fit all nodes' mixtures, and what it says about itself."""

    kind: ClassVar[Literal["neighbours", "hub", "one-shot", "protocol"]]
    """Who talks to whom: nodes with their neighbours, all with a hub, at most once, or by turns."""
    has_likelihood: ClassVar[bool] = True
    """Whether the mixtures are densities to be scored; false for hard clustering."""
    supports_missing: ClassVar[bool] = False  # whether rows may have missing cells (NaN)
    supports_categories: ClassVar[bool] = False  # whether there may be one-hot columns
    has_levels: ClassVar[bool] = False
    """Whether the outcome has `Levels`, with the evidence of rows that fits have not seen."""
    transforms_columns: ClassVar[bool] = False
    """Whether the estimator fits skewed columns transformed, unless it is told not to."""
    needs_equal_components: ClassVar[bool] = False
    """Whether all nodes must have the same number of components, being joined one by one."""
    moves_rows: ClassVar[bool] = False  # whether rows leave their nodes
    needs_start: ClassVar[bool] = True
    """Whether nodes begin from the starting mixtures of the estimator's `init`."""
    standardises: ClassVar[bool] = False
    """Whether it computes in standard deviations of the features, `reg_covar` included."""
    supports_float32: ClassVar[bool] = True  # whether a fit can be told to compute in float32
    sends: ClassVar[tuple[type, ...]] = ()
    """Types of what nodes tell each other, as far as they may do so between silos: there each must
    have a rule at the release gate (`federation/node/crossing.py`). Empty: in one process alone."""
    descends: ClassVar[bool] = True
    """Whether an objective far above its start means that the run has gone wrong."""

    covariance_type: str = eqx.field(static=True, default="full", kw_only=True)
    """``"full"``, ``"tied"``, ``"diag"`` or ``"spherical"``, as in scikit-learn."""

    def __check_init__(self):
        check_type("covariance_type", self.covariance_type)

    def program(self) -> Method:
        """What an engine runs: the method itself, unless an option chooses among programs."""
        return self

    def check(self, n_components: Sequence[int], network: Network) -> None:
        """Refuse what cannot work, before any work is done."""
        if self.needs_equal_components:
            _checks.same_components(type(self).__name__, n_components)

    def bounded(self, data: NodeData, n_components: Sequence[int]) -> Method:
        """The method with what it takes from the rows before it begins; by default nothing."""
        return self

    @property
    def bounds(self) -> FeasibleSet | None:
        """The set all mixtures stay in, where there is one."""
        return None

    def prepare(self, theta: Mixture, participants: Participants) -> Prepared:
        """What nodes settle before the first round; by default nothing, and nothing is sent."""
        return Prepared(theta)

    @property
    def pull_share(self) -> float:
        """Share of all pulls in the objective: a half where edges count from both ends."""
        return 1.0

    @property
    def rate(self) -> float | None:
        """Step size of a gradient method; None for others and where it is searched for."""
        return None

    @property
    def search(self) -> Backtracking | None:
        """How the engine finds step sizes; None for a method that has its own, or needs none.

        One with a search also has `n_local_steps` and ``with_rate(rate)``, the same program with
        that step.
        """
        return None

    @property
    def certifiable(self) -> bool:
        """Whether Proposition 1 speaks about this program."""
        return False

    def remedy(self, weighted_degree: float) -> str:
        """What to change if the run diverges at a node of this weighted degree."""
        return "Look at the rows of that node."


@dataclass(frozen=True, eq=False)
class Diagnostics:
    """What a method has to tell of a run beside the mixtures: named arrays, by node and by edge."""

    nodes: dict[str, np.ndarray]  # (nodes, ...) in the order of the labels
    edges: dict[str, np.ndarray] = field(default_factory=dict)
    """(edges, 2, ...) in the order of the network: the view of the source, then of the target."""


@dataclass(frozen=True, eq=False)
class Trust:
    """Diagnostics that tell of trust, by edge and by group.

    A method is read so if its diagnostics name an array ``trusted`` of edges; its further arrays,
    by whatever name, are evidence that is passed on as it is.
    """

    labels: tuple[Label, ...]
    source: np.ndarray
    target: np.ndarray
    trusted: np.ndarray  # (edges,) whether both ends trust each other
    group: np.ndarray
    """(nodes,) number of the group of each node, counted from 0 in the order of the labels."""
    diagnostics: Diagnostics

    @classmethod
    def of(cls, diagnostics: Diagnostics | None, network: Network) -> Trust | None:
        """The diagnostics' view of trust; None where it has none."""
        if diagnostics is None or "trusted" not in diagnostics.edges:
            return None
        trusted = np.logical_and.reduce(
            np.asarray(diagnostics.edges["trusted"], dtype=bool), axis=1
        )
        ends = network.source, network.target
        group = diagnostics.nodes.get("group")
        group = network.parts(trusted) if group is None else group
        first, number = np.unique(group, return_index=True, return_inverse=True)[1:]
        rank = np.argsort(np.argsort(first))
        return cls(network.labels, *ends, trusted, rank[number.reshape(-1)], diagnostics)

    @property
    def groups(self) -> list[tuple[Label, ...]]:
        """Labels of the nodes of each group."""
        return [
            tuple(self.labels[i] for i in np.flatnonzero(self.group == number))
            for number in range(self.group.max(initial=-1) + 1)
        ]

    def edges(self) -> list[dict[str, Any]]:
        """One plain record per edge: its ends, whether it is trusted, and all evidence of it.

        Evidence is a pair: seen from the source, seen from the target.
        """
        evidence = {name: of for name, of in self.diagnostics.edges.items() if name != "trusted"}
        return [
            {
                "source": self.labels[self.source[e]],
                "target": self.labels[self.target[e]],
                "trusted": bool(self.trusted[e]),
                **{name: tuple(of[e].tolist()) for name, of in evidence.items()},
            }
            for e in range(len(self.source))
        ]


@dataclass(frozen=True, eq=False)
class Levels:
    r"""Several densities per node and how much each counts: $p_i(x) = \sum_l w_{il} p_{il}(x)$."""

    names: tuple[str, ...]
    theta: Mixture  # stacked (levels, nodes, ...), NumPy
    weights: np.ndarray  # (nodes, levels), each line sums to one
    evidence: np.ndarray
    """(nodes, levels) mean log-density of own rows under each level, fitted without them."""
    clusters: np.ndarray  # (nodes,) the level that clusters are read from
    prequential: np.ndarray
    """(nodes, 1 + levels) total log-loss of own rows, each predicted from the rows before it: of
    the weighted levels, then of each level alone. The first is at most any other plus
    ``ln(levels)``."""

    @property
    def density(self) -> Mixture:
        """The weighted density of every node as one mixture of all components of all levels."""
        weights, means, covariances = (np.swapaxes(part, 0, 1) for part in self.theta.parts)
        joined = lambda part: part.reshape(len(part), -1, *part.shape[3:])
        return Mixture(
            joined(weights * self.weights[..., None]), joined(means), joined(covariances)
        )


@dataclass(frozen=True, eq=False)
class Joined:
    """Which components are one cluster, where clusters are fewer than components."""

    cluster: np.ndarray
    """(nodes, k) the cluster that each component of a node's mixture belongs to."""
    unsure: np.ndarray
    """(nodes, clusters) mean of r (1 - r) over own rows, r the membership by fits that have not
    seen the row: zero where every row is of one cluster for sure."""

    def relabel(self, number: np.ndarray) -> Joined:
        """A copy with numbers (nodes, clusters or more) in place of 0, 1, ..."""
        unsure = np.zeros(number.shape)
        old = self.unsure.shape[1]
        np.put_along_axis(unsure, number[:, :old], self.unsure, 1)
        return Joined(np.take_along_axis(number, self.cluster, 1), unsure)


@dataclass(frozen=True)
class Outcome:
    """What a method without rounds hands back."""

    theta: Mixture  # stack of the nodes' mixtures, NumPy
    message: str = ""  # what the user should know: turned into a warning
    nodes: dict[str, np.ndarray] = field(default_factory=dict)
    """For the diagnostics: arrays (nodes, ...)."""
    edges: dict[str, np.ndarray] = field(default_factory=dict)
    """For the diagnostics: arrays (edges, ...) in the order of the block, of a protocol."""
    levels: Levels | None = None
    """Where a node's density is a weighted sum of several; `theta` is then what clusters."""
    joined: Joined | None = None  # which components of `theta` are one cluster; None: each its own
    sent: np.ndarray | int = 0
    """Numbers each node sent to a hub (8 bytes each); a protocol is counted by its engine."""
    received: np.ndarray | int = 0  # numbers the hub sent to each node


class OneShot(Method):
    """All nodes are fitted at once, in float64; what is about rounds is refused."""

    kind: ClassVar = "one-shot"
    needs_start: ClassVar = False
    supports_float32: ClassVar = False
    recipients: ClassVar[Literal["hub", "nobody"]] = "hub"  # who receives what nodes send

    @abc.abstractmethod
    def fit(
        self, data: NodeData, n_components: Sequence[int], theta: Mixture | None, seed: int
    ) -> Outcome:
        """Fit the nodes' mixtures; `theta` holds starting mixtures where the user gave some."""
