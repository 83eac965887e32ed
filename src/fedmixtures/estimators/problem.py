"""What is solved: rows, network, method and components that fit together, and the units of the fit.

The estimator, the command line and the selections all solve a `Problem`. Rows stay in the units of
the user; where features are standardised, `solve` does so and gives all mixtures back.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedmixtures._types import Label
from fedmixtures.data.node_data import NodeData
from fedmixtures.data.transform import Transform
from fedmixtures.engine.run.watch import Progress
from fedmixtures.engine.solution import Solution
from fedmixtures.engine.solve import solve
from fedmixtures.estimators.default_graph import default_graph
from fedmixtures.estimators.resolve import resolve_components, resolve_graph, resolve_method
from fedmixtures.estimators.scale import Scale, scale_for
from fedmixtures.graph.network import Network
from fedmixtures.io.runs import read_checkpoint, write_checkpoint
from fedmixtures.methods.base import Method
from fedmixtures.methods.registry import check_categories, check_gaps
from fedmixtures.mixture.mixture import Mixture


@dataclass(frozen=True)
class Problem:
    """Rows, graph, method and components that fit together: all that can be checked is."""

    data: NodeData
    """Rows in the units of the user."""
    network: Network
    method: Method
    n_components: list[int]
    scale: Scale | None = None
    """Units of the fit, where they are not those of the rows."""
    graph_by_default: bool = False
    """Whether nobody gave a graph: then each method has its own."""

    @classmethod
    def of(
        cls,
        data: NodeData,
        graph: Any,
        method: Any,
        n_components: Any,
        standardize: bool | None = False,
    ) -> Problem:
        """From what a user wrote; `standardize` as for `scale_for`."""
        components = resolve_components(n_components, data.labels)
        method = resolve_method(method)
        network = resolve_graph(graph, data, method)
        scale = scale_for(data, method, standardize)
        return cls(data, network, method, components, scale, graph is None).checked()

    def checked(self) -> Problem:
        """Itself, if the method takes it."""
        self.method.check(self.n_components, self.network)
        check_gaps(self.method, self.data)
        check_categories(self.method, self.data)
        return self

    def where(self, **changed: Any) -> Problem:
        """A copy with some fields changed, in the same units; checked."""
        if "n_components" in changed:
            numbers = resolve_components(changed["n_components"], self.data.labels)
            changed["n_components"] = numbers
        if "method" in changed and self.graph_by_default:
            changed["network"] = default_graph(changed.get("data", self.data), changed["method"])
        new = dataclasses.replace(self, **changed)
        if new.data is self.data and new.scale is self.scale:
            vars(new)["fitted_data"] = self.fitted_data  # rows are scaled once
        return new.checked()

    def for_method(self, method: Method, standardize: bool | None) -> Problem:
        """A copy for another method, in the units that this one is fitted in."""
        return self.where(method=method, scale=scale_for(self.data, method, standardize))

    @property
    def components(self) -> int | dict[Label, int]:
        """Of all nodes, or where they differ of each."""
        numbers = self.n_components
        same = len(set(numbers)) == 1
        return numbers[0] if same else dict(zip(self.data.labels, numbers, strict=True))

    @cached_property
    def fitted_data(self) -> NodeData:
        """The rows as the fit sees them."""
        if self.scale is None:
            return self.data
        return dataclasses.replace(self.data, rows=self.scale.scaled(self.data.rows))

    @cached_property
    def log_volume(self) -> np.ndarray:
        """(nodes,) what mean log-densities of own rows lose in the units of the rows."""
        return (
            np.zeros(self.data.n_nodes) if self.scale is None else self.scale.log_volume(self.data)
        )

    def original(self, theta: Mixture) -> Mixture:
        """Mixtures of the fit in the units of the rows."""
        return theta if self.scale is None else self.scale.original(theta)

    def scaled(self, theta: Mixture) -> Mixture:
        """Mixtures in the units of the fit."""
        return theta if self.scale is None else self.scale.scaled_mixture(theta)

    def solve(
        self,
        init: Any = None,
        *,
        watch: Callable[[Progress], Any] | None = None,
        checkpoint: str | Path | None = None,
        resume: str | Path | None = None,
        **how: Any,
    ) -> Solution:
        """Run the method: all mixtures, seen on the way and at the end, are in the rows' units.

        Parameters
        ----------
        init
            Where nodes start, in the units of the rows: as `fedmixtures.solve` takes it.
        watch
            Called as `fedmixtures.solve` does it.
        checkpoint
            File to write with what it takes to go on, as often as `fedmixtures.solve` offers it.
        resume
            Such a file: go on from it.
        **how
            Further settings of `fedmixtures.solve`.
        """

        def seen(progress: Progress) -> None:
            assert watch is not None
            watch(self._in_users_units(progress))

        if isinstance(init, Mixture):
            init = self.scaled(init)
        elif isinstance(init, Mapping):
            known = lambda theta: self.scaled(theta) if isinstance(theta, Mixture) else theta
            init = {label: known(theta) for label, theta in init.items()}
        solution = solve(
            self.method,
            self.fitted_data,
            self.network,
            init,
            n_components=self.n_components,
            watch=None if watch is None else seen,
            checkpoint=None if checkpoint is None else partial(write_checkpoint, checkpoint),
            resume=None if resume is None else read_checkpoint(resume),
            **how,
        )
        if self.scale is None:
            return solution
        return solution.changed(self.scale.original, self.log_volume)

    def _in_users_units(self, progress: Progress) -> Progress:
        if self.scale is None:
            return progress
        volume = float(self.log_volume.sum())
        records = [
            {n: v + volume if n in ("objective", "fit") else v for n, v in record.items()}
            for record in progress.records
        ]
        original = self.scale.original
        return dataclasses.replace(
            progress, records=records, _theta=lambda: original(progress.theta)
        )


class FitInputs(NamedTuple):
    """Rows as they are to be fitted."""

    rows: NodeData
    """By node, in the user's units."""
    problem: Problem
    transform: Transform
    volume: np.ndarray
    """(nodes,) what mean log-densities of their rows lose in the user's units."""
    labelled: bool
    """Whether rows came with node labels."""
