"""EM and matching in plain NumPy, SciPy and scikit-learn, for comparison."""

from __future__ import annotations

import warnings

import numpy as np
from scipy.optimize import linear_sum_assignment
from scipy.special import logsumexp
from scipy.stats import multivariate_normal
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture

from fedmixtures import Mixture


def sklearn_em(rows: np.ndarray, start: Mixture, n_steps: int, tol: float = 0.0) -> Mixture:
    """`n_steps` EM steps of scikit-learn from a given mixture."""
    return mixture_of(sklearn_model(rows, start, n_steps, tol))


def mixture_of(model: GaussianMixture) -> Mixture:
    """The parameters of a fitted scikit-learn model."""
    return Mixture(model.weights_, model.means_, model.covariances_)


def sklearn_model(
    rows: np.ndarray, start: Mixture, n_steps: int, tol: float = 0.0
) -> GaussianMixture:
    """The same as a fitted model."""
    model = GaussianMixture(
        start.n_components,
        tol=tol,
        max_iter=n_steps,
        weights_init=start.weights,
        means_init=start.means,
        precisions_init=np.linalg.inv(start.covariances),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return model.fit(rows)


def log_joint(mixture: Mixture, rows: np.ndarray) -> np.ndarray:
    """Log of weight times density, by SciPy."""
    parts = zip(*mixture.parts, strict=True)
    return np.stack(
        [np.log(w) + multivariate_normal(m, c).logpdf(rows) for w, m, c in parts], axis=1
    )


def loss(mixture: Mixture, rows: np.ndarray) -> float:
    """Mean negative log-likelihood."""
    return float(-logsumexp(log_joint(mixture, rows), axis=1).mean())


def moments(mixture: Mixture, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """N, a, B about the origin, summed over rows."""
    joint = log_joint(mixture, rows)
    g = np.exp(joint - logsumexp(joint, axis=1, keepdims=True))
    return g.sum(0), g.T @ rows, np.einsum("rc,ri,rj->cij", g, rows, rows)


def from_moments(n, a, b, reg_covar: float = 1e-6) -> Mixture:
    """The M-step from moments about the origin."""
    means = a / n[:, None]
    covariances = b / n[:, None, None] - np.einsum("ci,cj->cij", means, means)
    return Mixture(n / n.sum(), means, covariances + reg_covar * np.eye(means.shape[1]))


def matched(own: np.ndarray, other: np.ndarray) -> np.ndarray:
    """For each own mean the number of the other's, least total distance."""
    distance = np.linalg.norm(own[:, None] - other[None], axis=-1)
    return linear_sum_assignment(distance)[1]


def numbers(k: int, d: int) -> int:
    """Numbers in one set of component parameters or moments."""
    return k * (1 + d + d * d)
