r"""No released number is finer than a fraction of its own standard error.

A number x with standard error s is rounded to a multiple of the first power of two above $f s$, up
or down by a secret uniform number, so that on average it stays x. The standard errors are those of
as many rows as the gate asks for, not of the rows there are: the grid tells nothing about their
number. The secret numbers are always the same for one data set, so that sending a model again, in
another round or job, tells no more about it.
"""

from __future__ import annotations

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

from fedmixtures._types import Array
from fedmixtures.federation.node.gate import projected
from fedmixtures.mixture.covariance_types import TYPES
from fedmixtures.mixture.feasible import FeasibleSet
from fedmixtures.mixture.mixture import Mixture


def rounded(
    mixture: Mixture, fraction: float, count: int, secret: bytes, feasible: FeasibleSet
) -> Mixture:
    r"""The mixture as coarsely as `count` rows to a component would give it.

    Covariances are rounded in their Cholesky factors, whose diagonal has the standard error
    $L_{ii} / \sqrt{2n}$: narrow directions keep their relative width.
    """
    if fraction == 0:
        return mixture
    present = np.asarray(mixture.weights) > 0
    weights, means, covariances = (np.array(part)[present] for part in mixture.parts)
    k, d = means.shape
    n = max(count, 1)
    slots = mixture.n_components
    offset = uniform(secret, slots * (1 + d + d * d)).reshape(slots, -1)[present]
    at_weight, at_mean, at_factor = np.split(offset, [1, 1 + d], axis=1)
    # What is one number in a type is rounded as one: an average of several would be finer.
    kind = TYPES[feasible.covariance_type]
    at_factor = kind.expanded(kind.compact(at_factor.reshape(k, d, d)), k, d)
    weights = to_grid(weights, fraction * np.sqrt(weights * (1 - weights) / n), at_weight[:, 0])
    variances = np.diagonal(covariances, axis1=1, axis2=2)
    means = to_grid(means, fraction * np.sqrt(variances / n), at_mean)
    factors = np.linalg.cholesky(covariances)
    errors = fraction * np.sqrt(factor_variances(factors) / n)
    factors = np.tril(to_grid(factors, errors, at_factor))
    out = [np.array(part) for part in mixture.parts]
    weights = np.maximum(weights, feasible.min_weight)
    out[0][present], out[1][present] = weights / weights.sum(), means
    out[2][present] = factors @ np.swapaxes(factors, 1, 2)
    return projected(Mixture(*out), feasible)


def factor_variances(factors: np.ndarray) -> np.ndarray:
    r"""Variance of the entries of a Cholesky factor from one row's worth of data.

    By Bartlett's decomposition $\hat L \approx L (I + E)$, E lower triangular with variances 1/2 on
    its diagonal and 1 below it, over the number of rows.
    """
    squares = np.square(factors)
    # sum over k > j of L_ik^2, for every entry (i, j)
    right = np.cumsum(squares[..., ::-1], axis=-1)[..., ::-1] - squares
    return 0.5 * squares + right


def to_grid(values: np.ndarray, coarseness: np.ndarray, offset: Array) -> np.ndarray:
    """Multiples of the next power of two, by secret offsets in [0, 1)."""
    fine = coarseness <= 0
    step = np.exp2(np.ceil(np.log2(np.where(fine, 1.0, coarseness))))
    return np.where(fine, values, np.floor(values / step + offset) * step)


def uniform(secret: bytes, n: int) -> np.ndarray:
    """`n` uniform numbers in [0, 1) from 32 secret bytes, always the same."""
    stream = Cipher(ChaCha20(secret, bytes(16)), mode=None).encryptor().update(bytes(8 * n))
    return (np.frombuffer(stream, "<u8") >> np.uint64(11)) * 2.0**-53


def normal(secret: bytes, n: int) -> np.ndarray:
    """`n` standard normal numbers from 32 secret bytes, always the same."""
    from scipy.special import ndtri

    return ndtri(uniform(secret, n) + 2.0**-54)
