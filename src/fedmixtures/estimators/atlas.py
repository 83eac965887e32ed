r"""The clusters of the whole network in one place: how large, where, what sets them apart.

All of it comes from the mixtures, numbered once (`names.py`): shares are weights, a cluster's
centre and spread are the moments of all nodes' components of its number. So a model that was
loaded, or collected between silos, has the same atlas as one that has just been fitted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from fedmixtures import _checks
from fedmixtures._ties import first_greatest, in_order
from fedmixtures._types import Label
from fedmixtures.data.transform import Transform
from fedmixtures.engine.solution import Solution
from fedmixtures.estimators.description import Description, places
from fedmixtures.estimators.names import bhattacharyya, profiles
from fedmixtures.mixture.mixture import Mixture

if TYPE_CHECKING:
    import pandas as pd

Z = 1.96
"""Standard normal quantile of intervals."""
PRESENT = 0.01
"""The least share of a node's rows with which a cluster counts as present there."""
APART = 0.5
"""Standard deviations from the mean of all rows from which on a feature is worth a word."""
WORDS = 3


@dataclass(frozen=True, eq=False)
class Atlas:
    """The clusters of a network; arrays by cluster have the numbers that `predict` gives."""

    profiles: Mixture
    """(k, ...) share of all rows, centre and covariance of each cluster over all nodes."""
    node_labels: tuple[Label, ...]
    shares: np.ndarray
    """(nodes, k) share of each node's rows."""
    centres: np.ndarray
    """(nodes, k, features) where each cluster lies at each node."""
    rows: np.ndarray | None
    """(nodes,) rows of each node, where that is known."""
    features: tuple[str, ...]
    names: tuple[str, ...]
    """Of the clusters, as the user has set them; else their numbers."""
    transform: Transform
    """How columns were taken. Centres, spreads, overlap and drift are in units of the fit; `table`
    is in the user's: medians and half the width of the middle 68 % of transformed columns."""
    unsure: np.ndarray | None = None
    """(nodes, k) mean of r (1 - r) over a node's rows, r the membership by fits that have not seen
    the row, where clusters were joined of components."""
    described: Description | None = None
    """Columns that were not fitted, by cluster, where `fit` was given any (`describe`)."""

    @classmethod
    def of(
        cls,
        solution: Solution,
        features: Sequence[str] | None = None,
        names: Sequence[str] | None = None,
        transform: Transform | None = None,
        described: Description | None = None,
    ) -> Atlas:
        """The atlas of a solution whose clusters have one numbering."""
        theta = solution.clusters
        k, d = theta.n_components, theta.n_features
        return cls(
            profiles(theta, solution.share),
            solution.labels,
            np.asarray(theta.weights),
            np.asarray(theta.means),
            solution.rows,
            tuple(features) if features is not None else tuple(f"x{i}" for i in range(d)),
            tuple(names) if names is not None else tuple(str(c) for c in range(k)),
            Transform.none(d) if transform is None else transform,
            None if solution.joined is None else solution.joined.unsure,
            described,
        )

    @property
    def n_clusters(self) -> int:
        """How many clusters there are anywhere."""
        return int((np.asarray(self.profiles.weights) > 0).sum())

    @property
    def spreads(self) -> np.ndarray:
        """(k, features) standard deviations."""
        own = np.sqrt(np.diagonal(self.profiles.covariances, axis1=1, axis2=2))
        shares = np.clip(np.asarray(self.profiles.tables), 1e-9, 1 - 1e-9)
        return np.concatenate([own, np.sqrt(shares * (1 - shares))], axis=1)

    @property
    def present(self) -> np.ndarray:
        """(nodes, k) whether a cluster has at least 1 % of a node's rows, and one row."""
        least = PRESENT if self.rows is None else np.maximum(PRESENT, 1 / self.rows[:, None])
        return self.shares >= least

    @property
    def intervals(self) -> np.ndarray:
        """(nodes, k, 2) 95 % intervals of the shares by Wilson's score; rows as if drawn alone.

        Where it is known how unsure memberships are, that is in them: a row of membership r adds
        the variance r (1 - r) to the number of rows of a cluster.
        """
        if self.rows is None:
            return np.stack([np.full_like(self.shares, np.nan)] * 2, axis=-1)
        return _wilson(self.shares, self.rows[:, None], self.unsure)

    @property
    def share_intervals(self) -> np.ndarray:
        """(k, 2) 95 % intervals of the shares of all rows, likewise."""
        share = np.asarray(self.profiles.weights)
        if self.rows is None:
            return np.full((len(share), 2), np.nan)
        unsure = None if self.unsure is None else self.rows @ self.unsure / self.rows.sum()
        return _wilson(share, float(self.rows.sum()), unsure)

    @property
    def certainty(self) -> np.ndarray | None:
        """(k,) how surely its rows belong to a cluster, by fits that have not seen them.

        The mean membership of a cluster's rows, each counted by its membership: 1 where no other
        cluster could have them. None where components were not joined.
        """
        if self.unsure is None:
            return None
        rows = np.ones(len(self.shares)) if self.rows is None else self.rows
        mass, unsure = rows @ self.shares, rows @ self.unsure
        return np.clip(1 - unsure / np.where(mass > 0, mass, 1.0), 0.0, 1.0)

    @cached_property
    def standing(self) -> np.ndarray:
        """(k, features) centres from the mean of all rows, in standard deviations of all rows."""
        weight, means = np.asarray(self.profiles.weights), np.asarray(self.profiles.means)
        centre = weight @ means
        variance = weight @ (self.spreads**2 + (means - centre) ** 2)
        return (means - centre) / np.sqrt(np.where(variance > 0, variance, 1.0))

    @property
    def overlap(self) -> np.ndarray:
        """(k, k) Bhattacharyya coefficients of the profiles: 0 apart, 1 the same."""
        return np.exp(-bhattacharyya(self.profiles, self.profiles))

    @property
    def drift(self) -> np.ndarray:
        """(nodes, k) how far from the profile a cluster lies, root mean square in its spreads."""
        off = (self.centres - np.asarray(self.profiles.means)) / self.spreads
        return np.where(self.present, np.sqrt((off**2).mean(-1)), np.nan)

    def words(self, cluster: int) -> str:
        """What sets a cluster apart: ``"high glucose, low sodium"``."""
        standing = self.standing[cluster]
        order = in_order(-abs(standing), scale=1.0)[:WORDS]
        told = [i for i in order if abs(standing[i]) >= APART]
        if not told:
            return "average in every feature"
        return ", ".join(dict.fromkeys(self._word(cluster, int(i)) for i in told))

    def _word(self, cluster: int, i: int) -> str:
        """What is special about a column of a cluster; of a category its largest share."""
        above = self.standing[cluster][i] > 0
        if i < self.profiles.n_continuous:
            return f"{'high' if above else 'low'} {self.features[i]}"
        share, name = float(self.profiles.means[cluster, i]), self.features[i]
        if above:
            return f"{'mostly' if share > 0.5 else 'more'} {name}"
        column = name.partition("=")[0] + "="
        same = [j for j, other in enumerate(self.features) if other.startswith(column)]
        shares = np.asarray(self.profiles.means)[cluster, same]
        most = int(first_greatest(shares))
        return f"mostly {self.features[same[most]]}" if shares[most] > 0.5 else f"few {name}"

    def nodes_of(self, cluster: int) -> tuple[Label, ...]:
        """Where a cluster is present."""
        return tuple(self.node_labels[i] for i in np.flatnonzero(self.present[:, cluster]))

    def table(self) -> pd.DataFrame:
        """A line for each cluster: name, share, words, nodes; then mean and spread by feature."""
        import pandas as pd

        shown = self.transform.users(self.profiles)
        spreads = np.sqrt(np.diagonal(shown.covariances, axis1=1, axis2=2))
        g = shown.n_continuous  # categories, which come after these, have shares alone
        lines: dict[Any, dict[str, Any]] = {}
        for c in np.flatnonzero(np.asarray(self.profiles.weights) > 0).tolist():
            line = {
                "name": self.names[c],
                "share": float(self.profiles.weights[c]),
                "what sets it apart": self.words(c),
                "nodes": len(self.nodes_of(c)),
            }
            for i, feature in enumerate(self.features):
                line[feature] = float(shown.means[c, i])
                if i < g:
                    line[f"{feature} (sd)"] = float(spreads[c, i])
            lines[c] = line
        return pd.DataFrame.from_dict(lines, orient="index").rename_axis("cluster")

    def share_table(self) -> pd.DataFrame:
        """Nodes by clusters: the share of each node's rows."""
        import pandas as pd

        return pd.DataFrame(self.shares, index=list(self.node_labels), columns=list(self.names))

    def description(self, node: Label | None = None) -> pd.DataFrame:
        """Clusters by columns that were not fitted (`describe`), in the network or at a node.

        Shares of the rows whose value is known, or mean and standard deviation of numbers, rows
        counted by their memberships; the last line is of all rows. "<5" is hidden: fewer than five
        rows stand behind it.
        """
        if self.described is None:
            raise ValueError(
                "no columns describe the clusters. Name some when you fit: "
                "fit(table, describe=['sex', 'outcome'])."
            )
        return self.described.table(self.names, places(self.node_labels, self.described, node))

    def __str__(self) -> str:
        lines = []
        for c in np.flatnonzero(np.asarray(self.profiles.weights) > 0).tolist():
            where = self.nodes_of(c)
            at = f"at {where[0]} alone" if len(where) == 1 else f"at {len(where)} nodes"
            share = f"{100 * float(self.profiles.weights[c]):.0f} % of rows"
            lines.append(f"{self.names[c]}: {share}, {at}: {self.words(c)}")
        return "\n".join(lines)


def _wilson(p: np.ndarray, n: np.ndarray | float, unsure: np.ndarray | None = None) -> np.ndarray:
    """(..., 2) Wilson's score interval of shares of n rows, `unsure` of their memberships."""
    middle = (p + Z**2 / (2 * n)) / (1 + Z**2 / n)
    half = Z / (1 + Z**2 / n) * np.sqrt(p * (1 - p) / n + Z**2 / (4 * n**2))
    if unsure is not None:
        half = np.sqrt(half**2 + Z**2 * unsure / n)
    return np.stack([np.maximum(middle - half, 0.0), np.minimum(middle + half, 1.0)], axis=-1)


def checked_names(names: Any, k: int) -> tuple[str, ...]:
    """One name for each cluster, all different."""
    names = tuple(map(str, names))
    if len(names) != k or len(set(names)) != k:
        raise ValueError(
            f"`names` is {_checks.listed(names)}. Give {k} different names, one for each "
            "cluster, in the order of their numbers."
        )
    return names
