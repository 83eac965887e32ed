"""Rows of several nodes whose populations are known: to judge clusters by, never to fit.

Tables of a folder (`csv_tables`; penguins also from the package ``palmerpenguins``), scikit-learn's
digits, blobs that are no Gaussians and that drift between nodes, and the paper's shifted blocks.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fedmixtures.data.scenarios import digits_scenario, shifted_blocks
from reproduction.tasks import csv_tables
from reproduction.tasks.csv_tables import Split

STREAM = 21
DRAWN: dict[str, dict[str, Any]] = {
    "digits": {"n_clusters": 10, "few": 60},
    "blobs": {"n_clusters": 5, "few": 50},
    "sbm": {"n_clusters": 15, "n_here": 5, "few": 50},
}
"""Problems that need no file: how many populations there are in the whole network and, if these are
fewer, at a node; and how many training rows a node has in the regime ``few``."""
REGIMES = {"few": "few rows", "400": "up to 400 rows"}
MOST_ROWS = 400
N_NODES, N_FEATURES, LEAST_PRESENT = 12, 4, 3
DRIFT = 0.35
"""Standard deviation of a population's shift at a node, in units of its spread."""
BEND = 0.6
SBM: dict[str, Any] = {"n_blocks": 3, "nodes_per_block": 5, "n_components": 5}


def problems() -> dict[str, dict[str, Any]]:
    """All problems by name: those that are drawn, and the tables of the folder that is named."""
    found = {name: {"drawn": name, **known} for name, known in DRAWN.items()}
    try:
        csv_tables.folder()
    except ValueError:
        return found
    for table, data in csv_tables.problems().items():
        own = {key: value for key, value in data.items() if key != "n_nodes"}
        form = own["form"]
        found[table] = {**own, "n_clusters": form["n_components"], "few": form["few"]}
    return found


def rows(data: dict[str, Any], seed: int) -> Split:
    """Training and test rows of one split, or one draw."""
    most = data["few"] if data["regime"] == "few" else MOST_ROWS
    if "table" in data:
        form = {**data["form"], "few": most}
        return csv_tables.split({**data, "form": form, "regime": "few"}, seed)
    return {"digits": _digits, "blobs": _blobs, "sbm": _blocks}[data["drawn"]](most, seed)


def _digits(most: int, seed: int) -> Split:
    drawn = digits_scenario(seed=seed)
    kept = _first_of_each(drawn.nodes, most)
    test = drawn.X_validation, drawn.nodes_validation, drawn.components_validation
    return Split(drawn.X[kept], drawn.nodes[kept], *test)


def _blocks(most: int, seed: int) -> Split:
    """The blocks differ in all means: what is one population in a block is none in another."""
    drawn = shifted_blocks(**SBM, n_train=most, n_validation=100, seed=seed)
    assert drawn.blocks is not None
    labels = drawn.blocks[drawn.nodes_validation] * SBM["n_components"]
    labels = labels + drawn.components_validation
    return Split(drawn.X, drawn.nodes, drawn.X_validation, drawn.nodes_validation, labels)


def _blobs(most: int, seed: int) -> Split:
    """Skewed and curved populations; each node lacks some, and all lie a little elsewhere there."""
    rng = np.random.default_rng([STREAM, seed])
    k, d = DRAWN["blobs"]["n_clusters"], N_FEATURES
    centres = _apart(k, rng)
    turns = np.linalg.qr(rng.standard_normal((k, d, d)))[0] * np.geomspace(1.3, 0.5, d)[:, None]
    train, test = [], []
    for own in rng.spawn(N_NODES):
        here = own.permutation(k)[: own.integers(LEAST_PRESENT, k + 1)]
        share = own.dirichlet(np.full(len(here), 2.0))
        shifts = DRIFT * own.standard_normal((k, d))
        for part, count, draw in ((train, most, own.spawn(1)[0]), (test, 200, own.spawn(1)[0])):
            label = draw.choice(here, size=count, p=share)
            shape = _shaped(draw.standard_normal((count, d)), label) + shifts[label]
            part.append((centres[label] + np.einsum("ri,rij->rj", shape, turns[label]), label))
    X, test_rows = (np.concatenate([own for own, _ in part]) for part in (train, test))
    nodes = [np.repeat(np.arange(N_NODES), len(part[0][0])) for part in (train, test)]
    labels = np.concatenate([own for _, own in test])
    return Split(X, nodes[0], test_rows, nodes[1], labels)


def _apart(k: int, rng: np.random.Generator, least: float = 3.5) -> np.ndarray:
    """Centres of which no two are nearer than `least`."""
    centres: list[np.ndarray] = []
    while len(centres) < k:
        new = 2.5 * rng.standard_normal(N_FEATURES)
        if all(np.linalg.norm(new - old) >= least for old in centres):
            centres.append(new)
    return np.array(centres)


def _shaped(z: np.ndarray, label: np.ndarray) -> np.ndarray:
    """Every third population is bent, every third skewed, every third a Gaussian."""
    bent, skewed = z.copy(), z.copy()
    bent[:, 1] += BEND * (z[:, 0] ** 2 - 1)
    skewed[:, 0] = np.exp(0.8 * z[:, 0]) - np.exp(0.32)
    kind = (label % 3)[:, None]
    return np.where(kind == 0, bent, np.where(kind == 1, skewed, z))


def _first_of_each(nodes: np.ndarray, most: int) -> np.ndarray:
    """Positions of at most so many rows of every node."""
    return np.concatenate([np.flatnonzero(nodes == node)[:most] for node in np.unique(nodes)])
