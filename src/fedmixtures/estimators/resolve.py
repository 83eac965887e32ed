"""From what a user wrote to what runs: method names, starts, component counts, graphs, seeds."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from fedmixtures import _checks
from fedmixtures._types import Device, Label
from fedmixtures.data.node_data import NodeData
from fedmixtures.discrepancy.euclidean import Euclidean
from fedmixtures.discrepancy.kl import KL
from fedmixtures.discrepancy.mmd import MMD
from fedmixtures.engine.options import Options
from fedmixtures.engine.run.cache import compilation_cache
from fedmixtures.engine.solution import FitWarning, Solution
from fedmixtures.engine.solve import solve
from fedmixtures.graph.convert import as_network
from fedmixtures.graph.generate import nearest_neighbours
from fedmixtures.graph.network import Network
from fedmixtures.init.kmeans import KMeansStart
from fedmixtures.methods.base import Method
from fedmixtures.methods.compared.baselines import Centralized, Local
from fedmixtures.methods.compared.consensus_em import ConsensusEM
from fedmixtures.methods.compared.fedem import FedEM
from fedmixtures.methods.compared.fedgengmm import FedGenGMM
from fedmixtures.methods.compared.fedgrem import FedGrEM
from fedmixtures.methods.compared.fedkmeans import FedKMeans
from fedmixtures.methods.compared.ifca import IFCA
from fedmixtures.methods.gtvmin import GTVMin
from fedmixtures.methods.trust_then_pool import TrustThenPool
from fedmixtures.mixture.feasible import FeasibleSet
from fedmixtures.mixture.mixture import Mixture

METHODS: dict[str, Callable[[], Method]] = {
    "gtv-euclidean": lambda: GTVMin(Euclidean()),
    "gtv-kl": lambda: GTVMin(KL()),
    "gtv-mmd": lambda: GTVMin(MMD()),
    "local": Local,
    "centralized": Centralized,
    "fedkmeans": FedKMeans,
    "fedgrem": FedGrEM,
    "consensus-em": ConsensusEM,
    "fedem": FedEM,
    "fedgengmm": FedGenGMM,
    "ifca": IFCA,
    "trust": TrustThenPool,
}
"""What the strings of the `method` slot stand for."""

MOST_LOOKED_AT = 5_000_000
"""Rows in which repeated ones are looked for where a node has many more than components."""

STARTS: dict[str, Callable[[], KMeansStart]] = {"kmeans": KMeansStart}


@dataclass(frozen=True)
class Problem:
    """Rows, graph, method and components that fit together: all that can be checked is."""

    data: NodeData
    network: Network
    method: Method
    n_components: list[int]

    @classmethod
    def of(cls, data: NodeData, graph: Any, method: Any, n_components: Any) -> Problem:
        """From what a user wrote."""
        components = resolve_components(n_components, data.labels)
        network = resolve_graph(graph, data)
        return cls(data, network, resolve_method(method), components).checked()

    def checked(self) -> Problem:
        """Itself, if the method takes it."""
        self.method.check(self.n_components, self.network)
        return self

    def solve(self, init: Any, options: Options) -> Solution:
        """Start every node and run the method."""
        data, network = self.data, self.network
        method = self.method.bounded(data, self.n_components)
        given = data, self.n_components, options.seed, method, network
        components, theta = start_of(init, *given)
        return solve(method, data, network, theta, options, components)


def resolve_method(method: Any) -> Method:
    """A method object, by itself or by name."""
    if isinstance(method, str):
        _checks.one_of("method", method, METHODS)
        return METHODS[method]()
    if not isinstance(method, Method):
        raise ValueError(
            f"`method` is {method!r}. Give one of {', '.join(METHODS)}, or an object such as "
            "GTVMin(MMD(), alpha=0.3)."
        )
    return method


def resolve_start(init: Any) -> Any:
    """A start object by itself or by name; a mapping of mixtures stays a mapping."""
    if isinstance(init, str):
        _checks.one_of("init", init, STARTS)
        return STARTS[init]()
    if not isinstance(init, (KMeansStart, Mapping)):
        raise ValueError(
            f"`init` is {init!r}. Give 'kmeans', KMeansStart(...), or a mapping from node label "
            "to Mixture."
        )
    return init


def resolve_components(n_components: Any, labels: tuple[Label, ...]) -> list[int]:
    """Number of components of every node."""
    if not isinstance(n_components, Mapping):
        _checks.whole("n_components", n_components)
        return [int(n_components)] * len(labels)
    missing = [label for label in labels if label not in n_components]
    if missing:
        raise ValueError(
            f"`n_components` names no number for node {_checks.listed(missing)}. "
            "Give one for every node that holds rows."
        )
    for label in labels:
        _checks.whole(f"n_components[{label!r}]", n_components[label])
    return [int(n_components[label]) for label in labels]


def affordable(n_components: list[int], data: NodeData) -> list[int]:
    """At most as many components as a node has distinct rows; a warning where that is fewer."""
    wanted = np.asarray(n_components)
    least = np.minimum(data.counts, wanted)
    # Among its first rows a node nearly always has enough; only the others are looked at wholly.
    few = np.flatnonzero(data.counts < 4 * wanted)
    many = np.flatnonzero(data.counts >= 4 * wanted)
    if len(many) * 4 * wanted.max() <= MOST_LOOKED_AT:
        first = data.offsets[many, None] + np.minimum(
            np.arange(4 * wanted.max()), data.counts[many, None] - 1
        )
        sorted_ = np.sort(data.rows[first, 0], axis=1)
        values = 1 + (np.diff(sorted_, axis=1) != 0).sum(1)
        few = np.concatenate([few, many[values < wanted[many]]])
    for i in few.tolist():
        least[i] = min(wanted[i], len(np.unique(data.of(i)[0], axis=0)))
    capped = np.flatnonzero(least < wanted)
    if len(capped):
        names = _checks.listed(data.labels[i] for i in capped)
        warnings.warn(
            f"node {names} has fewer distinct rows than n_components and gets one component per "
            "row. Lower n_components, or merge such a node with a neighbour.",
            FitWarning,
            stacklevel=3,
        )
    return least.tolist()


def filled(theta: Mixture, n_components: list[int]) -> Mixture:
    """The same densities with so many components: the heaviest ones stand twice, at half weight.

    For methods that match components one to one, which a node with few rows must have enough of.
    """
    found = []
    for i, k in enumerate(n_components):
        own = theta.at(i).trimmed()
        while own.n_components < k:
            heaviest = int(own.weights.argmax())
            order = [*range(own.n_components), heaviest]
            own = jax.tree.map(lambda part, order=order: part[order], own)
            weights = own.weights.copy()
            weights[[heaviest, -1]] /= 2
            own = Mixture(weights, own.means, own.covariances)
        found.append(own)
    return Mixture.stack(found)


def resolve_graph(graph: Any, data: NodeData) -> Network:
    """The network on exactly the nodes that hold rows."""
    if isinstance(graph, str) and graph.split(":")[0] == "knn":
        _, _, count = graph.partition(":")
        if count and not count.isdigit():
            raise ValueError(f"`graph` is {graph!r}. Write 'knn' or, say, 'knn:5'.")
        means = np.add.reduceat(data.rows, data.offsets[:-1]) / data.counts[:, None]
        wanted = min(int(count or 5), data.n_nodes - 1)
        if wanted < 1:
            return as_network(None, data.labels)
        return nearest_neighbours(means, wanted, labels=data.labels)
    return as_network(graph, data.labels).aligned(data.labels)


def resolve_seed(random_state: Any) -> int:
    """A whole number to seed everything: given, or drawn."""
    if isinstance(random_state, (int, np.integer)) and not isinstance(random_state, bool):
        return int(random_state) % 2**32
    from sklearn.utils import check_random_state

    return int(check_random_state(random_state).randint(2**31 - 1))


def start_of(
    init: Any, data: NodeData, n_components: list[int], seed: int, method: Method, network: Network
) -> tuple[list[int], Mixture | None]:
    """Components of every node, no more than its rows can bear, and where it starts."""
    if isinstance(init, Mapping):
        return n_components, starting_mixtures(init, data, n_components, seed, method)
    capped = affordable(n_components, data)
    theta = starting_mixtures(init, data, capped, seed, method)
    try:
        method.check(capped, network)
    except ValueError:  # one number for all nodes
        return n_components, None if theta is None else filled(theta, n_components)
    return capped, theta


def starting_mixtures(
    init: Any, data: NodeData, n_components: list[int], seed: int, method: Method
) -> Mixture | None:
    """Where every node starts, stacked; a warning if the feasible set moves it.

    None for a method that makes its own starts, unless the user gave mixtures.
    """
    feasible = getattr(method, "feasible", None)
    start = resolve_start(init)
    if isinstance(start, Mapping):
        theta = _given(start, data, n_components)
    elif not method.needs_start:
        return None
    else:
        floor = feasible.min_variance if feasible is not None else 1e-6
        with compilation_cache():
            theta = start.mixtures(data, n_components, seed, floor)
    if feasible is not None:
        _warn_if_moved(theta, feasible, data.labels)
    return theta


def _given(start: Mapping, data: NodeData, n_components: list[int]) -> Mixture:
    """Mixtures handed in by the user, checked against rows and components."""
    missing = [label for label in data.labels if label not in start]
    if missing:
        raise ValueError(
            f"`init` names no mixture for node {_checks.listed(missing)}. "
            "Give one for every node that holds rows."
        )
    for label, k in zip(data.labels, n_components, strict=True):
        mixture = start[label]
        if not isinstance(mixture, Mixture):
            raise ValueError(f"`init[{label!r}]` is {mixture!r}. Give a Mixture.")
        if mixture.weights.ndim != 1 or (mixture.n_components, mixture.n_features) != (
            k,
            data.n_features,
        ):
            raise ValueError(
                f"`init[{label!r}]` has means of shape {mixture.means.shape} but the node needs "
                f"{(k, data.n_features)}: n_components by features."
            )
    return Mixture.stack([start[label] for label in data.labels])


def _warn_if_moved(theta: Mixture, feasible: FeasibleSet, labels: tuple[Label, ...]) -> None:
    """Say which bounds the start violates and where: projecting it must not go unseen."""
    present = theta.weights > 0
    spectrum = np.linalg.eigvalsh(theta.covariances)
    slack = 1e-9
    # A computed eigenvalue is off by the rounding of the largest one.
    rounding = 16 * np.finfo(np.float64).eps * spectrum[..., -1]
    small = spectrum[..., 0] < feasible.min_variance * (1 - slack) - rounding
    large = spectrum[..., -1] > feasible.max_variance * (1 + slack)
    long = np.linalg.norm(theta.means, axis=-1) > feasible.max_mean_norm * (1 + slack)
    outside = {
        "min_weight": (present & (theta.weights < feasible.min_weight * (1 - slack))).any(-1),
        "max_mean_norm": (present & long).any(-1),
        "min_variance": (present & small).any(-1),
        "max_variance": (present & large).any(-1),
    }
    found = [
        f"{name}={getattr(feasible, name):g} at node "
        + _checks.listed(labels[i] for i in np.flatnonzero(where))
        for name, where in outside.items()
        if where.any()
    ]
    if found:
        warnings.warn(
            f"the start lies outside the feasible set and was moved into it: {'; '.join(found)}. "
            "Widen these bounds with feasible=FeasibleSet(...) if the rows are meant to go there.",
            FitWarning,
            stacklevel=4,
        )


def resolve_devices(devices: Any) -> tuple[Device, ...]:
    """The devices meant by a number, by ``"all"`` or by themselves; none means JAX's default."""
    if devices is None:
        return ()
    seen = jax.devices()
    if isinstance(devices, Sequence) and not isinstance(devices, str):
        if not devices or not all(isinstance(device, jax.Device) for device in devices):
            raise ValueError(
                f'`devices` is {devices!r}. Give some of `jax.devices()`, a number, or "all".'
            )
        return tuple(devices)
    if isinstance(devices, str):
        _checks.one_of("devices", devices, ("all",))
        return tuple(seen)
    _checks.whole("devices", devices)
    if devices > len(seen):
        raise ValueError(
            f"`devices` is {devices}, but JAX sees {len(seen)} ({seen[0].platform}). Ask for at "
            f"most {len(seen)}; to use so many cores of a CPU, set the environment variable "
            f"JAX_NUM_CPU_DEVICES={devices} before Python starts."
        )
    return tuple(seen[:devices])
