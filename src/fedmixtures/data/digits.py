"""The handwritten digits of the paper: ten principal components, split over nodes by class."""

from __future__ import annotations

import numpy as np

from fedmixtures.data.partition import dirichlet_split
from fedmixtures.data.partition import holdout as hold_out
from fedmixtures.data.synthetic import Scenario


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
    held_out = hold_out(nodes, holdout, np.random.default_rng(holdout_seed))
    return Scenario(
        X=X[~held_out],
        nodes=nodes[~held_out],
        components=classes[~held_out],
        X_validation=X[held_out],
        nodes_validation=nodes[held_out],
        components_validation=classes[held_out],
        labels=tuple(range(n_nodes)),
    )
