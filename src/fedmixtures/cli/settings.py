"""What a fit is asked to do: one record, from the command line or from a run's `config.toml`."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

NODES_WORTH_SPREADING = 500
"""From so many nodes on a second core saves more than it costs to set up."""


@dataclass(frozen=True)
class FitSettings:
    """Everything that decides the numbers of a run."""

    data: tuple[str, ...] = ()
    nodes: str | None = None
    features: tuple[str, ...] | None = None
    delimiter: str | None = None
    graph: str | None = None
    allow_isolated: bool = False
    method: str = "trust"
    covariance: str = "full"
    k: str = "3"
    alpha: str | None = None
    rounds: int = 40
    standardize: bool | None = None
    """Whether features are divided by their spread; None: where a method's steps need it."""
    holdout: float = 0.2
    pooled: bool = True
    seed: int = 0
    devices: int | None = None
    """Over how many the nodes are spread; None leaves the choice to `with_devices`."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Further settings of the method, by name."""
    components: Mapping[str, int] = field(default_factory=dict)
    """Components of each node, where they were chosen one by one."""
    curve: Mapping[str, float] = field(default_factory=dict)
    """What each number of components was worth, where it was to be chosen."""

    def __post_init__(self):
        if not 0 <= self.holdout < 1:
            raise ValueError(
                f"--holdout is {self.holdout:g}. Give the share of rows to hold out, from 0 to "
                "less than 1."
            )

    def read_table(self) -> Any:
        """The rows, cells of which may be missing."""
        from fedmixtures.io.tables import read_table

        columns = self.nodes, self.features, self.delimiter
        return read_table(self.data, *columns, gaps_ok=True)

    def to_config(self) -> dict[str, Any]:
        """As written to `config.toml`: paths made absolute, so that a run can be resumed."""
        config = asdict(self)
        config["data"] = [str(Path(source).absolute()) for source in self.data]
        if self.graph and Path(self.graph).is_file():
            config["graph"] = str(Path(self.graph).absolute())
        return {name: value for name, value in config.items() if value not in (None, {}, ())}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> FitSettings:
        """Read settings back; what other sections of the file say is not for us."""
        known = {f.name for f in fields(cls)}
        given = {name: value for name, value in config.items() if name in known}
        for name in ("data", "features"):
            if name in given:
                given[name] = tuple(given[name])
        for name in ("k", "alpha"):
            if name in given:
                given[name] = str(given[name])
        return cls(**given)


@dataclass(frozen=True, kw_only=True)
class TableOptions:
    """What `fit` and `compare` are told alike: the table, the graph and how mixtures are fitted.

    Parameters
    ----------
    nodes
        Column that names the node of each row.
    graph
        Who listens to whom: a CSV with the columns source,target and if you like weight; a GraphML
        file; `knn:5` for the five nodes with the nearest means; `full`. Without it nobody listens
        in `fit`, and `compare` takes `knn:5`.
    k
        Components of every node: a number, a CSV with the columns node,k, or for `fit` `auto`: one
        number by held-out rows for the default method, for others by BIC (per node where they
        allow it).
    covariance
        What covariances are like: `full`, `tied` (one for all components), `diag` (features vary
        apart) or `spherical` (all features alike). With few rows or many features diag or tied
        often fit better.
    features
        Columns to use, as a,b,c. By default all but the node column.
    rounds
        Exchanges between neighbours.
    holdout
        Share of every node's rows kept out of the fit, to judge by. 0 fits all rows, and a report
        then cannot say whether neighbours helped.
    standardize
        Divide every feature by its standard deviation over all nodes' rows, for the fit alone: the
        model and all that is shown are in your units. Unless you say, only for the couplings
        (gtv-...), whose step is made for features of order one, and only where a feature's spread
        within nodes is below 0.5 or above 10; others do not need it.
    allow_isolated
        Accept nodes that no edge names.
    delimiter
        Between the cells of a CSV, if not a comma.
    seed
        Seeds everything random; repeats of a comparison count up from it.
    """

    nodes: Annotated[str | None, Parameter(name=["--nodes", "-n"])] = None
    graph: Annotated[str | None, Parameter(name=["--graph", "-g"])] = None
    k: Annotated[str, Parameter(name=["--k", "-k"])] = "3"
    covariance: str = "full"
    features: str | None = None
    rounds: int = 40
    holdout: float = 0.2
    standardize: bool | None = None
    allow_isolated: Annotated[bool, Parameter(negative="")] = False
    delimiter: str | None = None
    seed: int = 0

    def settings(self, data: tuple[str, ...], **more: Any) -> FitSettings:
        """With the data and what a command has of its own."""
        given: dict[str, Any] = asdict(self) | {"features": names(self.features)} | more
        return FitSettings(**given, data=data)


UNLESS_GIVEN = TableOptions()


def default_method() -> str:
    """The method the library takes where none is named."""
    from fedmixtures.estimators.network_mixture import NetworkGaussianMixture

    return NetworkGaussianMixture().method


def parse_options(texts: Sequence[str]) -> dict[str, Any]:
    """Settings written as ``name=value``."""
    options = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise ValueError(f"--set is {text!r}. Write name=value, for example n_local_steps=1.")
        try:
            options[name.strip()] = ast.literal_eval(value.strip())
        except (ValueError, SyntaxError):
            options[name.strip()] = value.strip()
    return options


def names(text: str | None) -> tuple[str, ...] | None:
    """Names separated by commas."""
    if text is None:
        return None
    found = tuple(name.strip() for name in text.split(",") if name.strip())
    if not found:
        raise ValueError("a list of names is empty. Write a,b,c.")
    return found


def offer_cores() -> None:
    """Make every core of this machine a device of JAX; before anything else uses it."""
    import jax

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    with contextlib.suppress(RuntimeError):  # JAX runs already, with the devices it has
        jax.config.update("jax_num_cpu_devices", cores or 1)


def with_devices(settings: FitSettings, n_nodes: int) -> FitSettings:
    """The settings with a number of devices: all for many nodes, else one."""
    import jax

    if settings.devices is not None:
        from fedmixtures import _checks

        _checks.whole("--devices", settings.devices)
        return settings
    return dataclasses.replace(
        settings, devices=jax.device_count() if n_nodes >= NODES_WORTH_SPREADING else 1
    )
