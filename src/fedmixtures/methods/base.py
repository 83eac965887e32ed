"""A method is a small program that every node runs; engines carry its messages.

The functions of a program see a *block* of nodes: every array has a leading node axis. A silo in a
federation is a block of one, a simulation runs blocks of hundreds, with the same code.
"""

from __future__ import annotations

import abc
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from fedmixtures._types import Array, Label, NodeKeys, PerNode, PerSlot, RowWeights, SlotKeys
from fedmixtures.data.node_data import NodeData, label_hash
from fedmixtures.graph.network import Network
from fedmixtures.mixture.covariance_types import check_type
from fedmixtures.mixture.density import GappyRows
from fedmixtures.mixture.feasible import FeasibleSet
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


class Backtracking(eqx.Module):
    r"""Step sizes by search: a round counts only if it lowers the objective enough.

    With step $\eta$ and $T_{loc}$ local steps, enough is $\|\Theta_t - \Theta_{t+1}\|^2 /
    (2 \eta T_{loc})$; for one local step that is the decrease Proposition 1 rests on. The step is
    shortened until it is, and tried a little longer in the next round.
    """

    first: float = 1.0
    smallest: float = 1e-10
    """The search, and with it the run, ends below this step."""
    shorter: float = 0.5
    longer: float = 1.25

    def accepts(self, decrease: float, moved: float, rate: float, n_local_steps: int) -> bool:
        """Whether the objective fell by enough for a move of this squared length."""
        return decrease >= moved / (2 * rate * n_local_steps)


class Method(eqx.Module):
    """A way to fit all nodes' mixtures, and what it says about itself."""

    kind: ClassVar[Literal["neighbours", "hub", "one-shot", "conversation"]]
    """Who talks to whom: nodes with their neighbours, all with a hub, at most once, or by turns."""
    has_likelihood: ClassVar[bool] = True
    """Whether the mixtures are densities to be scored; false for hard clustering."""
    fits_gaps: ClassVar[bool] = False
    """Whether rows may have missing cells (NaN)."""
    has_levels: ClassVar[bool] = False
    """Whether the outcome has `Levels`, with the evidence of rows that fits have not seen."""
    moves_rows: ClassVar[bool] = False
    """Whether rows leave their nodes."""
    needs_start: ClassVar[bool] = True
    """Whether nodes begin from the starting mixtures of the estimator's `init`."""
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
        del n_components, network

    def bounded(self, data: NodeData, n_components: Sequence[int]) -> Method:
        """The same method with what it takes from the rows before it begins; by default nothing."""
        del data, n_components
        return self

    @property
    def bounds(self) -> FeasibleSet | None:
        """The set all mixtures stay in, where there is one."""
        return None

    def prepare(self, theta: Mixture, meeting: Meeting) -> Prepared:
        """What nodes settle before the first round; by default nothing, and nothing is sent."""
        del meeting
        return Prepared(theta)

    @property
    def opening_rounds(self) -> int:
        """Rounds before which standing still says nothing about convergence."""
        return 0

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

    def join(
        self, block: Block, levels: Levels, rows: np.ndarray, account: Account
    ) -> Outcome | None:
        """What a node that comes later gets from what the network has found; None: its own fit.

        `rows` (nodes,) are those of the fitted nodes, `levels` and `account` what was found.
        """
        del block, levels, rows, account
        return None

    def remedy(self, weighted_degree: float) -> str:
        """What to change if the run diverges at a node of this weighted degree."""
        del weighted_degree
        return "Look at the rows of that node."


class NodeRows(eqx.Module):
    """What the nodes of a block hold and never send; an engine stacks blocks in front."""

    rows: Float[Array, "*blocks nodes m d"] | GappyRows
    """Padded to a common length; padding has weight zero."""
    row_weights: Float[Array, "*blocks nodes m"]
    """Share of each row in its node: sums to one, or to zero where a block has no node."""
    total_weight: Float[Array, "*blocks nodes"]
    """Sum of the sample weights, the number of rows if none were given."""


class Outgoing(eqx.Module):
    """What leaves the nodes of a block in one round."""

    broadcast: Any
    """Arrays (nodes, ...): the same message to every neighbour."""
    per_slot: Any = None
    """Arrays (nodes, slots, ...): a message of its own for each neighbour, or nothing."""


class Inbox(eqx.Module):
    """What the nodes of a block have received: their neighbours' last messages."""

    broadcast: Any
    """Digested messages (nodes, slots, ...)."""
    per_slot: Any
    """Messages addressed to this very node (nodes, slots, ...), or nothing."""
    weight: PerSlot
    """Edge weight; zero marks a slot without a neighbour."""


class Keys(eqx.Module):
    """Random keys of this round, folded from (seed, round, label of the node, of the neighbour)."""

    node: NodeKeys
    slot: SlotKeys


class Info(eqx.Module):
    """What a round shows and never reads back: one number per node; engines stack them."""

    fit: Float[Array, "*rounds nodes"]
    """The local loss, eq. (1), of the state the round began with."""
    pull: Float[Array, "*rounds nodes"]
    """What the neighbours add to it: alpha times the weighted sum of discrepancies."""
    moved: Float[Array, "*rounds nodes"]
    """Squared distance the parameters moved during the round."""
    at_bound: Float[Array, "*rounds nodes"]
    """One where a mean lies on the bound of the feasible set when the round began."""


class NodeProgram(Method):
    """A synchronous message-passing program: nodes talk to their neighbours alone."""

    kind: ClassVar = "neighbours"

    @abc.abstractmethod
    def start(self, theta: Mixture, data: NodeRows, keys: NodeKeys) -> Any:
        """State before the first round, from the starting mixtures; nothing is sent."""

    def meet(self, state: Any, weight: PerSlot) -> Any:
        """The same state with room for what is kept of each neighbour; by default nothing is."""
        del weight
        return state

    @abc.abstractmethod
    def outgoing(self, state: Any, weight: PerSlot) -> Outgoing:
        """What leaves the nodes in this round."""

    def digest(self, broadcast: Any) -> Any:
        """What a receiver works out from one message alone (one node, no leading axis)."""
        return broadcast

    @abc.abstractmethod
    def step(self, state: Any, inbox: Inbox, data: NodeRows, keys: Keys) -> tuple[Any, Info]:
        """One round: neighbours' messages in, the new state and what can be seen of it out."""

    @abc.abstractmethod
    def result(self, state: Any, data: NodeRows) -> Mixture:
        """The nodes' mixtures; nothing is sent."""

    def account(self, state: Any, data: NodeRows) -> Any:
        """What else there is to tell: named arrays of nodes and of slots, or None."""
        del state, data
        return None


class HubProgram(Method):
    """A synchronous program with a hub: every node sends to it, and all receive its reply.

    The hub sees every node's messages in the clear, and `prepare` is its work too: it sees every
    node's starting mixture where a method begins with one.
    """

    kind: ClassVar = "hub"

    @abc.abstractmethod
    def start(self, theta: Mixture, shared: Any, data: NodeRows) -> Any:
        """State before the first round, from the own starting mixture and what the hub has sent."""

    @abc.abstractmethod
    def upload(self, state: Any, data: NodeRows) -> tuple[Any, Any]:
        """What leaves each node (nodes, ...), and what it keeps of that work for its `step`."""

    @abc.abstractmethod
    def hub(self, messages: Any, rows: PerNode, hub_state: Any) -> tuple[Any, Any]:
        """The reply to all nodes and the hub's new state, from the messages of all nodes.

        `rows` counts each node's rows (known from the first contact); zero where there is no node.
        """

    @abc.abstractmethod
    def step(self, state: Any, kept: Any, reply: Any, data: NodeRows) -> tuple[Any, Info]:
        """The hub's reply in, the new state and what can be seen of the old one out."""

    @abc.abstractmethod
    def result(self, state: Any, data: NodeRows) -> Mixture:
        """The nodes' mixtures; nothing is sent."""


@dataclass(frozen=True, eq=False)
class Account:
    """What a method has to tell of a run beside the mixtures: named arrays, by node and by edge."""

    nodes: dict[str, np.ndarray]
    """(nodes, ...) in the order of the labels."""
    edges: dict[str, np.ndarray] = field(default_factory=dict)
    """(edges, 2, ...) in the order of the network: the view of the source, then of the target."""


@dataclass(frozen=True, eq=False)
class Levels:
    r"""Several densities per node and how much each counts: $p_i(x) = \sum_l w_{il} p_{il}(x)$."""

    names: tuple[str, ...]
    theta: Mixture
    """Stacked (levels, nodes, ...), NumPy."""
    weights: np.ndarray
    """(nodes, levels), each line sums to one."""
    evidence: np.ndarray
    """(nodes, levels) mean log-density of own rows under each level, fitted without them."""
    clusters: np.ndarray
    """(nodes,) the level that clusters are read from."""
    prequential: np.ndarray
    """(nodes, 1 + levels) total log-loss of own rows, each foretold from the rows before it: of the
    weighed levels, then of each level alone. The first is at most any other plus ``ln(levels)``."""

    @property
    def density(self) -> Mixture:
        """The weighed density of every node as one mixture of all components of all levels."""
        weights, means, covariances = (np.swapaxes(part, 0, 1) for part in self.theta.parts)
        joined = lambda part: part.reshape(len(part), -1, *part.shape[3:])
        return Mixture(
            joined(weights * self.weights[..., None]), joined(means), joined(covariances)
        )


@dataclass(frozen=True)
class Outcome:
    """What a method without rounds hands back."""

    theta: Mixture
    """Stack of the nodes' mixtures, NumPy."""
    message: str = ""
    """What the user should know: turned into a warning."""
    nodes: dict[str, np.ndarray] = field(default_factory=dict)
    """For the account: arrays (nodes, ...)."""
    edges: dict[str, np.ndarray] = field(default_factory=dict)
    """For the account: arrays (edges, ...) in the order of the block, of a conversation."""
    levels: Levels | None = None
    """Where a node's density is a weighed sum of several; `theta` is then what clusters."""
    sent: np.ndarray | int = 0
    """Numbers each node sent to a hub (8 bytes each); a conversation is counted by its engine."""
    received: np.ndarray | int = 0
    """Numbers the hub sent to each node."""


class OneShot(Method):
    """All nodes are fitted at once; `n_rounds` plays no part."""

    kind: ClassVar = "one-shot"
    needs_start: ClassVar = False

    @property
    @abc.abstractmethod
    def recipients(self) -> Literal["hub", "nobody"]:
        """Who receives what nodes send."""

    @abc.abstractmethod
    def fit(
        self, data: NodeData, n_components: Sequence[int], theta: Mixture | None, seed: int
    ) -> Outcome:
        """Fit the nodes' mixtures; `theta` holds starting mixtures where the user gave some."""


@dataclass(frozen=True, eq=False)
class Block:
    """The nodes that one process runs a conversation for: all of them, or a single silo's one.

    Nodes are listed by position, their neighbours as directed edges: sorted by receiver, then by
    the hash of the sender's label, so that no number depends on the order in which nodes came.
    """

    data: NodeData
    """Rows, row weights and labels of these nodes; ``data.of(i)`` are those of one."""
    n_components: np.ndarray
    """(nodes,)"""
    seed: int
    dtype: str
    start: Mixture | None
    """Starting mixtures, where the user gave some."""
    line: np.ndarray
    """(nodes,) where each node's own message stands in the reply to a `Broadcast`."""
    receiver: np.ndarray
    """(edges,) the node that hears."""
    sender: np.ndarray
    """(edges,) the line of the node that is heard, in the reply to a `Broadcast`."""
    weight: np.ndarray
    """(edges,) positive."""
    neighbour: np.ndarray
    """(edges,) `label_hash` of the node that is heard."""
    reverse: np.ndarray
    """(edges,) the edge of the opposite direction; -1 where the neighbour is elsewhere."""


@dataclass(frozen=True)
class Broadcast:
    """One message to all neighbours. Reply: a table (lines, ...), own messages among them.

    ``table[block.sender]`` is what was heard over every edge, ``table[block.line]`` what was sent.
    """

    message: Any
    """Pytree of arrays (nodes, ...)."""
    rows: np.ndarray | None = None
    """The block's rows in the units of the message: what a silo's gate counts behind it."""


@dataclass(frozen=True)
class PerNeighbour:
    """A message to each neighbour. Reply: what came over every edge, (edges, ...)."""

    message: Any
    """Pytree of arrays (edges, ...): over edge e to the sender of e, who hears it from there."""


class Groups(NamedTuple):
    """Which nodes belong together; each (nodes,) int64."""

    label: np.ndarray
    """A number that all nodes of a group share, made from their labels and not from positions."""
    size: np.ndarray
    """How many they are."""
    rank: np.ndarray
    """Place of the node in its group: most live edges first, then by the hash of its label."""


@dataclass(frozen=True)
class Connect:
    """Find the groups that are connected by edges live from both ends. Reply: `Groups`."""

    live: np.ndarray
    """(edges,) bool."""


@dataclass(frozen=True)
class Sum:
    """Totals over groups. Reply: the total of each node's own group, (nodes, ...)."""

    share: Any
    """Pytree of arrays (nodes, ...)."""
    group: np.ndarray | None = None
    """(nodes,) labels as `Connect` gives them; None: one total over all nodes."""
    spread: Any = 1.0
    """Standard deviation of what one row adds, a number or a pytree like the share: between silos
    no total is finer than a part of it. Zero: no row is in it, but messages that were broadcast
    before. Of a `Statistics`: the covariances (nodes, ..., d, d) that it was taken under; its
    log-likelihood stays at home."""


Request = Broadcast | PerNeighbour | Connect | Sum


class Conversation(Method):
    """A program that is written from top to bottom: it asks, and goes on when it has the reply.

    Every process runs the same generator on its own block: a simulation one for all nodes, a silo
    one for its node. Whoever drives it carries the messages, so that what leaves a node is what is
    yielded and nothing else. To go on after a crash a silo runs the generator again on the replies
    it has kept: `run` has to be deterministic, given block and replies. All nodes make the same
    requests in the same order, so that conditions for a further request must be known to all
    (totals over everybody, say).
    """

    kind: ClassVar = "conversation"
    needs_start: ClassVar = False

    @abc.abstractmethod
    def run(self, block: Block) -> Generator[Request, Any, Outcome]:
        """Yield requests, get replies, return the outcome."""


def counts(data: NodeRows) -> RowWeights:
    """Row weights that sum to the rows of each node."""
    return data.row_weights * data.total_weight[:, None]


def shown(fit: PerNode, moved: PerNode) -> Info:
    """What a round of a method without pull and bounds shows."""
    nothing = jnp.zeros_like(fit)
    return Info(fit, nothing, moved, nothing)


def squared_distance(a: Mixture, b: Mixture) -> PerNode:
    """Squared Euclidean distance of the stacked parameters of each node, as they stand."""
    squares = jax.tree.map(lambda x, y: jnp.square(x - y).reshape(len(x), -1).sum(-1), a, b)
    return squares.weights + squares.means + squares.covariances
