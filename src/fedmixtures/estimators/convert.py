"""Mixtures to and from scikit-learn's `GaussianMixture`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedmixtures.mixture.covariance_types import TYPES, check_type, is_of_type
from fedmixtures.mixture.mixture import Mixture

if TYPE_CHECKING:
    from sklearn.mixture import GaussianMixture


def to_sklearn(mixture: Mixture, covariance_type: str = "full") -> GaussianMixture:
    """A fitted scikit-learn `GaussianMixture` with the parameters of one mixture."""
    from sklearn.mixture import GaussianMixture

    check_type("covariance_type", covariance_type)
    mixture = mixture.trimmed()
    if not is_of_type(mixture, covariance_type):
        raise ValueError(
            f"`covariance_type` is {covariance_type!r}, but the mixture has other covariances. "
            "Give 'full'."
        )
    compact = TYPES[covariance_type].compact
    model = GaussianMixture(mixture.n_components, covariance_type=covariance_type)
    model.weights_, model.means_ = mixture.weights, mixture.means
    model.covariances_ = compact(mixture.covariances)
    factors = np.linalg.cholesky(mixture.covariances)
    eye = np.broadcast_to(np.eye(mixture.n_features), factors.shape)
    inverse = np.linalg.solve(factors, eye)
    model.precisions_cholesky_ = compact(np.swapaxes(inverse, -1, -2))
    model.precisions_ = compact(np.swapaxes(inverse, -1, -2) @ inverse)
    model.n_features_in_ = mixture.n_features
    model.converged_, model.n_iter_, model.lower_bound_ = True, 0, np.nan
    model.lower_bounds_ = []
    return model


def from_sklearn(model: GaussianMixture) -> Mixture:
    """The mixture of a fitted scikit-learn model; any covariance type becomes full matrices."""
    if not hasattr(model, "weights_"):
        raise ValueError("`model` is not fitted. Call its `fit` first.")
    given = np.asarray(model.covariances_)
    covariances = TYPES[model.covariance_type].expanded(given, *model.means_.shape)
    return Mixture(model.weights_, model.means_, covariances)
