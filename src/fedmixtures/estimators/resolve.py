"""From what a user wrote to what runs: methods, starts, components, columns, graphs, seeds."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from fedmixtures import _checks
from fedmixtures._types import Device, Label
from fedmixtures.data.node_data import NodeData
from fedmixtures.data.transform import Transform, choose
from fedmixtures.engine.solution import FitWarning
from fedmixtures.estimators.default_graph import default_graph
from fedmixtures.graph.generate import nearest_neighbours
from fedmixtures.graph.network import Network, as_network
from fedmixtures.init import KMeansStart, Start
from fedmixtures.methods.base import Method
from fedmixtures.methods.compared.baselines import WITH_PRIOR, Centralized, Local
from fedmixtures.methods.registry import METHODS
from fedmixtures.mixture.covariance_types import check_type
from fedmixtures.mixture.m_step import ShapePrior
from fedmixtures.mixture.moments import column_moments

SMALLEST_REG_COVAR = 1e-3
"""Share of the least varying feature's variance; keeps nodes with few rows from collapsing."""
AUTO = "auto"
NUMBERS = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 48, 64)
"""Of components that are tried where none is given."""
TOL = 1e-6
"""Of `NetworkGaussianMixture` and the command line: when rounds have converged."""
STARTS: dict[str, Callable[[], Start]] = {
    "kmeans": KMeansStart,
    "local": lambda: Local(**WITH_PRIOR),
}


def resolve_method(method: Any, covariance_type: str = "full") -> Method:
    """A method object, by itself or by name, with this covariance type unless it has its own."""
    check_type("covariance_type", covariance_type)
    if isinstance(method, str):
        _checks.one_of("method", method, METHODS)
        method = METHODS[method]()
    if not isinstance(method, Method):
        raise ValueError(
            f"`method` is {method!r}. Give one of {', '.join(METHODS)}, or an object such as "
            "GTVMin(MMD(), alpha=0.3)."
        )
    if covariance_type in ("full", method.covariance_type):
        return method
    if method.covariance_type != "full":
        raise ValueError(
            f"`covariance_type` is {covariance_type!r}, but that of `method` is "
            f"{method.covariance_type!r}. Leave one of them out."
        )
    return dataclasses.replace(method, covariance_type=covariance_type)


def resolve_start(init: Any) -> Any:
    """A start object by itself or by name; a mapping of mixtures stays a mapping."""
    if isinstance(init, str):
        _checks.one_of("init", init, STARTS)
        return STARTS[init]()
    if not isinstance(init, (Start, Mapping)):
        raise ValueError(
            f"`init` is {init!r}. Give 'kmeans', 'local', KMeansStart(...), Local(...), or a "
            "mapping from node label to Mixture."
        )
    return init


def resolve_components(n_components: Any, labels: tuple[Label, ...]) -> list[int]:
    """Number of components of every node."""
    if isinstance(n_components, str):
        numbers_of(n_components)
        return [1] * len(labels)  # until the number has been found
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


def numbers_of(asked: str, name: str = "n_components", at_least: int = 1) -> list[int]:
    """Which numbers to try, upwards: ``"auto"``, or a range such as ``"2:12"``."""
    least, colon, most = asked.partition(":")
    if asked == AUTO:
        low, high = at_least, max(NUMBERS[-1], at_least)
    elif not colon or not least.strip().isdigit() or not most.strip().isdigit():
        raise ValueError(
            f"`{name}` is {asked!r}. Give a whole number, 'auto', or a range to look in, such as "
            "'2:12'."
        )
    else:
        low, high = max(int(least), at_least), int(most)
        if not 1 <= int(least) <= int(most):
            low = high + 1
    if low > high:
        more = f" There are to be {at_least} clusters at least." if at_least > 1 else ""
        raise ValueError(f"`{name}` is {asked!r}. Give a range from 1 or more upwards.{more}")
    return sorted({low, *(k for k in NUMBERS if low < k < high), high})


def resolve_clusters(n_clusters: Any, n_components: Any, method: Method) -> Method:
    """The method, told how many clusters to join components into."""
    joins = hasattr(method, "n_clusters")
    if n_clusters is None:
        given = getattr(method, "n_clusters", None) is not None
        if not joins or given or not isinstance(n_components, str):
            return method
        return dataclasses.replace(method, n_clusters="auto")
    if isinstance(n_clusters, str):
        _checks.one_of("n_clusters", n_clusters, (AUTO,))
    else:
        _checks.whole("n_clusters", n_clusters)
    return dataclasses.replace(method, n_clusters=n_clusters) if joins else method


def check_clusters(n_clusters: Any, n_components: Any, method: Method) -> None:
    """Warn of numbers that do not go together."""
    both = isinstance(n_clusters, int) and isinstance(n_components, int)
    joins = hasattr(method, "n_clusters")
    if both and joins and n_components < n_clusters:
        told = f"there are {n_components} components to join. Raise n_components, or leave it out."
    elif n_clusters is not None and not joins and n_clusters != n_components:
        told = f"{type(method).__name__} takes every component for a cluster. Give n_components."
    else:
        return
    warnings.warn(f"`n_clusters` is {n_clusters!r}, but {told}", FitWarning, stacklevel=3)


def resolve_transform(
    transforms: Any, data: NodeData, features: tuple[str, ...], method: Method
) -> Transform:
    """How columns are taken: as was asked, or found out."""
    if transforms is None:
        transforms = "auto" if method.transforms_columns else "none"
    if not isinstance(transforms, Mapping):
        _checks.one_of("transforms", transforms, ("auto", "none"))
        return Transform.none(data.n_features) if transforms == "none" else choose(data)
    unknown = [name for name in transforms if str(name) not in features]
    if unknown:
        raise ValueError(
            f"`transforms` names {_checks.listed(unknown)}, but the columns are "
            f"{_checks.listed(features, 12)}."
        )
    for name, kind in transforms.items():
        _checks.one_of(f"transforms[{name!r}]", kind, ("auto", "none", "log"))
    return choose(data, {features.index(str(name)): kind for name, kind in transforms.items()})


def resolve_graph(graph: Any, data: NodeData, method: Method | None = None) -> Network:
    """The network on exactly the nodes that hold rows; without a graph `default_graph`."""
    if graph is None:
        return default_graph(data, method)
    if isinstance(graph, str) and graph.split(":")[0] == "knn":
        _, _, count = graph.partition(":")
        if count and not count.isdigit():
            raise ValueError(f"`graph` is {graph!r}. Write 'knn' or, say, 'knn:5'.")
        wanted = min(int(count or 5), data.n_nodes - 1)
        if wanted < 1:
            return as_network(None, data.labels)
        return nearest_neighbours(data.means(), wanted, labels=data.labels)
    return as_network(graph, data.labels).aligned(data.labels)


def resolve_seed(random_state: Any) -> int:
    """A whole number to seed everything: given, or drawn."""
    if isinstance(random_state, (int, np.integer)) and not isinstance(random_state, bool):
        return int(random_state) % 2**32
    from sklearn.utils import check_random_state

    return int(check_random_state(random_state).randint(2**31 - 1))


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


def own_data_only(method: Any, rows: np.ndarray) -> Method:
    """What a method is compared with: what a node runs with nobody to listen to.

    With the method's own prior and `reg_covar`, so that a difference is what listening brought.
    A coupling is fitted as it is, with alpha 0. For other methods it is EM from several starts,
    with a shape prior where the method has none: without one, few rows collapse into spikes, and
    anything looks good beside that.
    """
    if hasattr(method, "alpha"):
        return dataclasses.replace(method, alpha=0.0)
    prior = getattr(method, "prior", None) or ShapePrior()
    same = {"reg_covar": _reg_covar(method, rows), "covariance_type": method.covariance_type}
    return Local(engine="jax", prior=prior, **same)


def all_rows_pooled(method: Any, rows: np.ndarray) -> Method:
    """One mixture of all rows; they are many, so that a prior would change little."""
    same = {"reg_covar": _reg_covar(method, rows), "covariance_type": method.covariance_type}
    return Centralized(engine="jax", **same)


def _reg_covar(method: Any, rows: np.ndarray) -> float:
    """What the method adds to the diagonal of covariances, or a little of the rows' variance."""
    given = getattr(method, "reg_covar", 0.0)
    _, variances = column_moments(rows)
    least = variances[variances > 0].min(initial=1.0)
    given = given * least if method.standardises else given
    return float(max(given, SMALLEST_REG_COVAR * least))
