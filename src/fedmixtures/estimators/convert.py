"""Mixtures to and from scikit-learn's `GaussianMixture`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedmixtures.mixture.mixture import Mixture

if TYPE_CHECKING:
    from sklearn.mixture import GaussianMixture


def to_sklearn(mixture: Mixture) -> GaussianMixture:
    """A fitted scikit-learn `GaussianMixture` with the parameters of one mixture."""
    from sklearn.mixture import GaussianMixture

    mixture = mixture.trimmed()
    model = GaussianMixture(mixture.n_components, covariance_type="full")
    model.weights_, model.means_, model.covariances_ = mixture.parts
    factors = np.linalg.cholesky(mixture.covariances)
    eye = np.broadcast_to(np.eye(mixture.n_features), factors.shape)
    model.precisions_cholesky_ = np.swapaxes(np.linalg.solve(factors, eye), -1, -2)
    model.precisions_ = model.precisions_cholesky_ @ np.swapaxes(model.precisions_cholesky_, -1, -2)
    model.n_features_in_ = mixture.n_features
    model.converged_, model.n_iter_, model.lower_bound_ = True, 0, np.nan
    model.lower_bounds_ = []
    return model


def from_sklearn(model: GaussianMixture) -> Mixture:
    """The mixture of a fitted scikit-learn model; any covariance type becomes full matrices."""
    if not hasattr(model, "weights_"):
        raise ValueError("`model` is not fitted. Call its `fit` first.")
    k, d = model.means_.shape
    given = np.asarray(model.covariances_)
    covariances = {
        "full": lambda: given,
        "tied": lambda: np.broadcast_to(given, (k, d, d)),
        "diag": lambda: given[:, :, None] * np.eye(d),
        "spherical": lambda: given[:, None, None] * np.eye(d),
    }[model.covariance_type]()
    return Mixture(model.weights_, model.means_, covariances)
