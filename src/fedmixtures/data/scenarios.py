"""The paper's data: D_iso, D_var, D_aniso, shifted blocks, the digits over nodes.

Truth, training rows and validation rows are drawn from separate streams of one seed, and every
node has its own: more training rows leave the truth and the validation rows as they were. No
graph enters here, so one data set serves a whole sweep over graphs.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from fedmixtures import _checks
from fedmixtures.data import splits

KINDS = ("iso", "var", "aniso")
DIFFERENCES = ("means", "covariances", "weights")
MEAN_SCALE = 5.0
VARIANCES = (0.5, 2.0)
EIGENVALUES = (2.0, 0.3)
MAX_DRAWS = 10_000


@dataclass(frozen=True, eq=False)
class Scenario:
    """Rows of several nodes, split in training and validation, with the truth where known.

    Parameters
    ----------
    X, nodes, components
        Training rows, with the label of the node that holds each and the component (or class) it
        came from.
    X_validation, nodes_validation, components_validation
        The same for the validation rows.
    labels
        The nodes, in the order of the leading axis of all arrays per node.
    weights, means, covariances
        The mixture each node's rows were drawn from: shapes (n, k), (n, k, d) and (n, k, d, d).
        None for measured data.
    blocks
        Nodes with the same number have the same truth. None for measured data.
    """

    X: np.ndarray
    nodes: np.ndarray
    components: np.ndarray
    X_validation: np.ndarray
    nodes_validation: np.ndarray
    components_validation: np.ndarray
    labels: tuple[Hashable, ...]
    weights: np.ndarray | None = None
    means: np.ndarray | None = None
    covariances: np.ndarray | None = None
    blocks: np.ndarray | None = None

    @property
    def n_nodes(self) -> int:
        """Number of nodes."""
        return len(self.labels)


def homogeneous(
    kind: str = "iso",
    n_nodes: int = 10,
    n_components: int = 2,
    n_features: int = 2,
    n_train: int = 100,
    n_validation: int = 400,
    rows_per_node: Sequence[int] | None = None,
    seed: int = 0,
) -> Scenario:
    """All nodes draw from one mixture.

    Means are 5 times standard normal and components equally likely. Covariances are the identity
    (`"iso"`); the identity times a variance per component, from 0.5 to 2 (`"var"`); or randomly
    turned ellipsoids with eigenvalues from 2 to 0.3 (`"aniso"`), spaced geometrically where there
    are more than two. The means do not depend on `kind`. `rows_per_node` gives every node its own
    number of training rows, in place of `n_train`.
    """
    rng, *streams = _streams(seed)
    truth = _mixture(kind, n_components, n_features, rng)
    blocks = np.zeros(_checks.whole("n_nodes", n_nodes), dtype=np.int64)
    rows = _rows_per_node(rows_per_node, n_train, n_nodes)
    return _draw(tuple(part[None] for part in truth), blocks, rows, n_validation, streams)


def shifted_blocks(
    n_blocks: int = 3,
    nodes_per_block: int = 5,
    n_components: int = 5,
    n_features: int = 2,
    n_train: int = 50,
    n_validation: int = 400,
    shift_scale: float = 5.0,
    kind: str = "iso",
    differ: str = "means",
    rows_per_node: Sequence[int] | None = None,
    seed: int = 0,
) -> Scenario:
    """Nodes of one block draw from one mixture; the blocks differ.

    The first block has the mixture of `homogeneous` with this seed. The others differ from it in
    `differ` alone: `"means"` (the paper) moves all means of a block by one draw from
    N(0, shift_scale² I); `"covariances"` gives the block freshly turned `"aniso"` covariances;
    `"weights"` draws its weights uniformly from the simplex. Nodes are numbered block by block.
    """
    _checks.one_of("differ", differ, DIFFERENCES)
    rng, *streams = _streams(seed)
    base = _mixture(kind, n_components, n_features, rng)
    weights, means, covariances = (
        np.repeat(part[None], _checks.whole("n_blocks", n_blocks), axis=0) for part in base
    )
    for block in range(1, n_blocks):
        if differ == "means":
            means[block] += shift_scale * rng.standard_normal(n_features)
        elif differ == "covariances":
            covariances[block] = _turned_ellipsoids(n_components, n_features, rng)
        else:
            weights[block] = rng.dirichlet(np.ones(n_components))
    blocks = np.repeat(np.arange(n_blocks), _checks.whole("nodes_per_block", nodes_per_block))
    rows = _rows_per_node(rows_per_node, n_train, len(blocks))
    return _draw((weights, means, covariances), blocks, rows, n_validation, streams)


def _streams(seed: int) -> list[np.random.Generator]:
    """Truth, training, validation."""
    return [np.random.default_rng(child) for child in np.random.SeedSequence(seed).spawn(3)]


def _mixture(
    kind: str, n_components: int, n_features: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    _checks.one_of("kind", kind, KINDS)
    k, d = _checks.whole("n_components", n_components), _checks.whole("n_features", n_features)
    means = MEAN_SCALE * rng.standard_normal((k, d))
    if kind == "aniso":
        covariances = _turned_ellipsoids(k, d, rng)
    else:
        variances = np.geomspace(*VARIANCES, k) if kind == "var" else np.ones(k)
        covariances = variances[:, None, None] * np.eye(d)
    return np.full(k, 1 / k), means, covariances


def _turned_ellipsoids(k: int, d: int, rng: np.random.Generator) -> np.ndarray:
    # QR leaves the signs of the axes uneven, which Q diag(.) Q^T does not see.
    axes, _ = np.linalg.qr(rng.standard_normal((k, d, d)))
    turned = axes * np.geomspace(*EIGENVALUES, d) @ np.swapaxes(axes, -1, -2)
    return (turned + np.swapaxes(turned, -1, -2)) / 2


def _draw(
    per_block: tuple[np.ndarray, ...],
    blocks: np.ndarray,
    rows: Sequence[int],
    n_validation: int,
    streams: list[np.random.Generator],
) -> Scenario:
    weights, means, covariances = (part[blocks] for part in per_block)
    truth = (weights, means, np.linalg.cholesky(covariances))
    X, nodes, components = _sample_nodes(truth, rows, streams[0])
    held_out = [_checks.whole("n_validation", n_validation)] * len(blocks)
    X_validation, nodes_validation, components_validation = _sample_nodes(
        truth, held_out, streams[1]
    )
    return Scenario(
        X=X,
        nodes=nodes,
        components=components,
        X_validation=X_validation,
        nodes_validation=nodes_validation,
        components_validation=components_validation,
        labels=tuple(range(len(blocks))),
        weights=weights,
        means=means,
        covariances=covariances,
        blocks=blocks,
    )


def _sample_nodes(
    truth: tuple[np.ndarray, ...], rows: Sequence[int], rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows, node labels and components, node by node."""
    points, components = [], []
    for weights, means, roots, n, own in zip(*truth, rows, rng.spawn(len(rows)), strict=True):
        component = own.choice(len(weights), size=n, p=weights)
        noise = own.standard_normal((n, means.shape[1]))
        points.append(means[component] + np.einsum("rij,rj->ri", roots[component], noise))
        components.append(component)
    nodes = np.repeat(np.arange(len(rows)), rows)
    return np.concatenate(points), nodes, np.concatenate(components)


def _rows_per_node(rows: Sequence[int] | None, n_train: int, n_nodes: int) -> list[int]:
    if rows is None:
        return [_checks.whole("n_train", n_train)] * n_nodes
    if len(rows) != n_nodes:
        raise ValueError(
            f"`rows_per_node` has {len(rows)} entries, but there are {n_nodes} nodes. "
            "Give the number of training rows of every node."
        )
    return [_checks.whole("rows_per_node", n) for n in rows]


def digits() -> tuple[np.ndarray, np.ndarray]:
    """Embed scikit-learn's 1797 digits in 10 dimensions, and return their classes too.

    The principal components are those of all images, and one number, the standard deviation of
    all entries together, brings them to unit scale; so their relative sizes stay.
    """
    from sklearn.datasets import load_digits
    from sklearn.decomposition import PCA

    images, classes = load_digits(return_X_y=True)
    X = PCA(n_components=10, svd_solver="full").fit_transform(images)
    return X / X.std(), np.asarray(classes)


def digits_scenario(
    n_nodes: int = 10, concentration: float = 0.5, holdout: float = 0.4, seed: int = 0
) -> Scenario:
    """Split the digits over nodes with a Dirichlet mix of classes, a part of each held out.

    `components` are the digit classes. There is no true mixture, so the truth is None.
    """
    X, classes = digits()
    split_seed, holdout_seed = np.random.SeedSequence(seed).spawn(2)
    nodes = dirichlet_split(classes, n_nodes, concentration, np.random.default_rng(split_seed))
    held_out = splits.holdout(nodes, holdout, np.random.default_rng(holdout_seed))
    return Scenario(
        X=X[~held_out],
        nodes=nodes[~held_out],
        components=classes[~held_out],
        X_validation=X[held_out],
        nodes_validation=nodes[held_out],
        components_validation=classes[held_out],
        labels=tuple(range(n_nodes)),
    )


def dirichlet_split(
    classes: ArrayLike,
    n_nodes: int,
    concentration: float,
    seed: int | np.random.Generator,
    min_rows: int = 20,
) -> np.ndarray:
    """Node (0 .. n_nodes-1) of every row, with the mix of classes differing between nodes.

    The rows of each class, in random order, are divided over the nodes in proportions drawn from
    a symmetric Dirichlet: a `concentration` of 0.5 gives strong skew, 100 nearly equal mixes.
    The proportions are drawn again until every node has at least `min_rows` rows.
    """
    classes = np.asarray(classes)
    if classes.ndim != 1:
        raise ValueError(f"`classes` has the shape {classes.shape}. Give one class per row.")
    _checks.whole("n_nodes", n_nodes)
    _checks.positive("concentration", concentration)
    if n_nodes * min_rows > len(classes):
        raise ValueError(
            f"{len(classes)} rows cannot give {n_nodes} nodes `min_rows`={min_rows} rows each. "
            "Lower n_nodes or min_rows."
        )
    rng = np.random.default_rng(seed)
    _, class_of_row, sizes = np.unique(classes, return_inverse=True, return_counts=True)
    for _ in range(MAX_DRAWS):
        proportions = rng.dirichlet(np.full(n_nodes, concentration), size=len(sizes))
        # Shares are rounded at their ends, so that those of a class always sum to its size.
        ends = np.rint(np.cumsum(proportions, axis=1) * sizes[:, None]).astype(np.int64)
        ends[:, -1] = sizes
        counts = np.diff(ends, axis=1, prepend=0)
        if counts.sum(axis=0).min() >= min_rows:
            node_of_row = np.empty(len(classes), dtype=np.int64)
            for number, shares in enumerate(counts):
                rows = rng.permutation(np.flatnonzero(class_of_row == number))
                node_of_row[rows] = np.repeat(np.arange(n_nodes), shares)
            return node_of_row
    raise ValueError(
        f"no split gave all {n_nodes} nodes at least {min_rows} rows in {MAX_DRAWS} draws with "
        f"`concentration`={concentration:g} and {len(classes)} rows. "
        "Raise concentration, or lower n_nodes or min_rows."
    )
