r"""Algorithm 1: synchronous projected gradient on the GTVMin objective.

**The objective, written down once.** Eq. (2) of the paper,

$$F(\Theta) = \sum_i \Big[ L_i(\theta_i)
  + \alpha \sum_{j \in N(i)} w_{ij} D(\theta_i, \theta_j) \Big],$$

counts every edge from both ends. In Algorithm 1 node i differentiates its own bracket with the
neighbours frozen, so that for a symmetric D a round with one local step moves along

$$\nabla_{\theta_i}\Big[ L_i + \alpha \sum_j w_{ij} D(\theta_i, \theta_j) \Big]
  = \nabla_{\theta_i} \Big[ \sum_i L_i
  + \alpha \sum_{\{i,j\} \in E} w_{ij} D(\theta_i, \theta_j) \Big]:$$

projected gradient on the objective that counts every edge **once**, which is F with $\alpha/2$. We
report and certify that objective. Proposition 1 holds for it; for F as printed it does not (at a
minimiser of F the right side of its bound is zero while the algorithm still moves). For KL, which
is not symmetric, the reported objective is F on the points drawn in the round.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp

from fedmixtures import _checks
from fedmixtures._types import NodeKeys, PerNode
from fedmixtures.data.node_data import NodeData
from fedmixtures.discrepancy import MMD, AbstractDiscrepancy, Coupling
from fedmixtures.graph.network import Network
from fedmixtures.kernels.dispatch import nll_and_gradient, statistics
from fedmixtures.methods.base import Backtracking
from fedmixtures.methods.em_steps import (
    Pseudorows,
    descend,
    em_direction,
    local_loss,
    loss_of_statistics,
)
from fedmixtures.methods.programs import Inbox, Info, Keys, NodeProgram, NodeRows, squared_distance
from fedmixtures.mixture.feasible import FeasibleSet
from fedmixtures.mixture.m_step import ShapePrior
from fedmixtures.mixture.mixture import Mixture


class GTVMin(NodeProgram):
    """Algorithm 1 with a discrepancy of choice.

    Parameters
    ----------
    discrepancy
        How nodes compare with their neighbours: `MMD`, `KL`, `Euclidean`, or one of your own.
    alpha
        How much nodes listen to neighbours; 0 is not at all.
    n_local_steps
        Gradient steps between two exchanges. Proposition 1 is about one.
    learning_rate
        Step size, for features of order one; ``"auto"`` or a `Backtracking` shortens it until the
        objective decreases (needs the whole objective, so it works in one process only).
    feasible
        Bounds all mixtures stay in; None takes them from the rows.
    solver
        ``"gradient"``: the plain steps of eq. (6). ``"em"``: steps of EM's kind, each halved until
        the node's objective falls (`learning_rate` plays no part). For features of different
        spreads and thin components, where no one step size serves all.
    prior
        Shrink covariances to a common shape: the local loss is then that of the maximum a
        posteriori. None is eq. (1).
    """

    sends: ClassVar[tuple[type, ...]] = (Mixture,)
    supports_missing: ClassVar[bool] = True

    discrepancy: AbstractDiscrepancy = MMD()
    alpha: float = 1.0
    n_local_steps: int = 5
    learning_rate: float | Literal["auto"] | Backtracking = 0.02
    feasible: FeasibleSet | None = None
    solver: Literal["gradient", "em"] = "gradient"
    prior: ShapePrior | None = None

    def __check_init__(self):
        if not isinstance(self.discrepancy, AbstractDiscrepancy):
            raise ValueError(
                f"`discrepancy` is {self.discrepancy!r}. Give an object such as MMD(), KL() or "
                "Euclidean()."
            )
        if self.feasible is not None and not isinstance(self.feasible, FeasibleSet):
            raise ValueError(f"`feasible` is {self.feasible!r}. Give a FeasibleSet or None.")
        _checks.one_of("solver", self.solver, ("gradient", "em"))
        if self.prior is not None and not isinstance(self.prior, ShapePrior):
            raise ValueError(f"`prior` is {self.prior!r}. Give a ShapePrior or None.")
        _checks.positive("alpha", self.alpha, allow_zero=True)
        _checks.whole("n_local_steps", self.n_local_steps)
        if self.search is not None:
            if self.discrepancy.random:
                name = type(self.discrepancy).__name__
                raise ValueError(
                    f"`learning_rate` is {self.learning_rate!r}, but {name} draws new points every "
                    "round, so there is no one objective to test a step on. Give a number, or "
                    "use MMD or Euclidean."
                )
        else:
            _checks.positive("learning_rate", self.learning_rate)

    def check(self, n_components: Sequence[int], network: Network) -> None:
        """Some discrepancies match components one to one."""
        self.discrepancy.check_components(n_components)

    @property
    def needs_equal_components(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether its discrepancy needs equal numbers of components."""
        return self.discrepancy.needs_equal_components

    def bounded(self, data: NodeData, n_components: Sequence[int]) -> GTVMin:
        """With a feasible set, taken from the rows if none was given."""
        most, feasible = max(n_components), self.feasible
        if feasible is None:
            feasible = FeasibleSet.around(data.rows, most, data.row_weights)
        feasible.check_components(most)
        return self.within(feasible)

    def within(self, feasible: FeasibleSet) -> GTVMin:
        """The method in a feasible set, which takes on the method's covariance type."""
        own = dataclasses.replace(feasible, covariance_type=self.covariance_type)
        return dataclasses.replace(self, feasible=own)

    @property
    def bounds(self) -> FeasibleSet | None:
        """The feasible set."""
        return self.feasible

    def start(self, theta: Mixture, data: NodeRows, keys: NodeKeys) -> Mixture:
        """Line 1: the starting mixtures, moved into the feasible set."""
        return self._feasible.project(theta)

    def outgoing(self, state: Mixture) -> Mixture:
        """Line 7: every neighbour receives the mixture."""
        return state

    def digest(self, broadcast: Mixture):
        """What the discrepancy needs of a received mixture."""
        return self.discrepancy.digest(broadcast)

    def step(
        self, state: Mixture, inbox: Inbox, data: NodeRows, keys: Keys
    ) -> tuple[Mixture, Info]:
        """Lines 3 to 6: freeze the neighbours, then take the local steps of eq. (6)."""
        coupling = self.discrepancy.couple(state, inbox.broadcast, keys.slot, inbox.weight)

        def gradient_step(theta: Mixture, _):
            fit, pull, gradient, _ = self._node_objective(theta, coupling, data)
            moved = jax.tree.map(lambda x, g: x - self.learning_rate * g, theta, gradient)
            return self._feasible.project(moved, present=theta.weights > 0), (fit, pull)

        def em_step(carry: tuple[Mixture, PerNode], _):
            theta, rate = carry
            fit, pull, gradient, (prior, s) = self._node_objective(theta, coupling, data)
            direction = em_direction(theta, gradient, s, prior, self.covariance_type)
            value = lambda at: local_loss(at, data, prior)[0] + self.alpha * coupling.pull(at)[0]
            project = lambda at: self._feasible.project(at, present=theta.weights > 0)
            tried = jnp.minimum(2 * rate, 1.0)
            return descend(theta, direction, fit + pull, tried, value, project), (fit, pull)

        if self.solver == "gradient":
            theta, (fit, pull) = jax.lax.scan(gradient_step, state, length=self.n_local_steps)
        else:
            begin = state, jnp.ones(len(state.weights), state.means.dtype)
            (theta, _), (fit, pull) = jax.lax.scan(em_step, begin, length=self.n_local_steps)
        return theta, self._info(state, theta, fit[0], pull[0])

    @property
    def pull_share(self) -> float:
        """For a symmetric D the algorithm descends on the objective with every edge once."""
        return 0.5 if self.discrepancy.symmetric else 1.0

    @property
    def rate(self) -> float | None:
        """The given step size; steps of EM's kind have none."""
        given = self.learning_rate
        return None if self.solver == "em" or not isinstance(given, float | int) else given

    @property
    def search(self) -> Backtracking | None:
        """By backtracking, unless a step size is given or every node finds its own."""
        given = self.learning_rate
        if self.solver == "em":
            return None
        if isinstance(given, Backtracking):
            return given
        return Backtracking() if given == "auto" else None

    def with_rate(self, rate: float) -> GTVMin:
        """The program with a given step size."""
        return dataclasses.replace(self, learning_rate=rate)

    @property
    def certifiable(self) -> bool:
        """Proposition 1: a smooth symmetric discrepancy and one plain local step."""
        d = self.discrepancy
        plain = self.solver == "gradient" and self.prior is None and self.n_local_steps == 1
        return d.smooth and d.symmetric and not d.random and plain

    def remedy(self, weighted_degree: float) -> str:
        """Name the step size, and the coupling where it makes the step too long."""
        if self.rate is None:
            return super().remedy(weighted_degree)
        coupling = self.alpha * weighted_degree * (self.rate or 0.0)
        if coupling > 1:
            limit = 0.5 / (self.alpha * weighted_degree)
            return (
                f"alpha ({self.alpha:g}) x weighted degree ({weighted_degree:g}) x learning_rate "
                f"({self.rate:g}) is {coupling:.3g}, above 1: lower learning_rate to about "
                f"{limit:.1g}, lower alpha, or use learning_rate='auto'."
            )
        return (
            f"learning_rate={self.rate:g} is likely too large for these features: lower it, "
            "standardize the features, use learning_rate='auto', or solver='em' with a prior."
        )

    def _node_objective(
        self, theta: Mixture, coupling: Coupling, data: NodeRows
    ) -> tuple[PerNode, PerNode, Mixture, Any]:
        """Line 5 for every node: local loss, pull of the neighbours, gradient of their sum.

        With them what a step of EM's kind needs: the prior as rows, and the statistics.
        """
        if self.solver == "gradient" and self.prior is None:
            fit, fit_gradient = nll_and_gradient(theta, data.rows, data.row_weights)
            used = None
        else:
            s = statistics(theta, data.rows, data.row_weights)
            prior = None if self.prior is None else Pseudorows.of(s, data, self.prior)
            fit, fit_gradient = loss_of_statistics(theta, s, prior)
            used = prior, s
        pull, pull_gradient = coupling.pull(theta)
        gradient = jax.tree.map(lambda a, b: a + self.alpha * b, fit_gradient, pull_gradient)
        return fit, self.alpha * pull, gradient, used

    def _info(self, before: Mixture, after: Mixture, fit: PerNode, pull: PerNode) -> Info:
        norms = jnp.linalg.norm(before.means, axis=-1).max(-1)
        bound = self._feasible.max_mean_norm * (1 - 1e-6)
        return Info(fit, pull, squared_distance(before, after), jnp.where(norms >= bound, 1.0, 0.0))

    @property
    def _feasible(self) -> FeasibleSet:
        if self.feasible is None:
            raise ValueError("`feasible` is None. Give a FeasibleSet to run the program by itself.")
        return self.feasible
