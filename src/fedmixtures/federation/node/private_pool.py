r"""Trust-then-Pool under differential privacy: everyone's mixture by EM on noisy sums alone.

Nothing leaves a site but its part of `NoisySum`s: no release, no bit, no group. For each component
c a row adds $r_c (1, u_c, u_c u_c^\top)$ with its responsibility $r_c$ and $u_c$, its place about
the component in the component's own units, shortened to length one: the mixture is known to all, so
that its units tell nothing. The inner product of what two rows add is
$\sum_c r_c r'_c (1 + t_c + t_c^2)$, $t_c = u_c \cdot u'_c$, never below zero; no row adds more than
$\sqrt 3$. Replacing one moves a sum by at most $\sqrt 6$. The rows of a person share a weight of
one, an average that stays within the same bound.

The first sum is of one Gaussian, from which places of the components are drawn by the job's seed;
each further one is a step of EM. Own and personal levels are made at home, of the own rows and of
what all have found, and are weighed there.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.cluster import KMeans

from fedmixtures import _checks
from fedmixtures.federation.job import JobError
from fedmixtures.methods.base import Diagnostics, Levels, Outcome
from fedmixtures.methods.protocol import Block, Protocol, Request, Sum
from fedmixtures.methods.trust_then_pool import TrustThenPool
from fedmixtures.mixture.m_step import ShapePrior, m_step
from fedmixtures.mixture.mixture import Mixture
from fedmixtures.mixture.moments import Statistics

SENSITIVITY = 6**0.5
"""How far a sum moves when one person's rows are replaced."""
LEVELS = ("own", "personal", "everyone")
MORE = 1.5
"""Rows are shortened to the root of the features and so many standard deviations."""
DRAWS = 100
"""Of one Gaussian for each component, to find its places."""
FAINT = 3.0
"""Components of a mass below so many standard deviations of the noise keep place and shape."""


@dataclass(frozen=True)
class NoisySum(Sum):
    """A sum over all sites, with noise, charged to the ledger. Reply: the total."""


class PrivatePool(Protocol):
    """The private form of a Trust-then-Pool job."""

    sends: ClassVar[tuple[type, ...]] = (NoisySum,)

    method: TrustThenPool
    clip: float
    """Length of a long row in the job's units: how wide the Gaussian of the first sum is."""
    noise: float
    """z: standard deviation of the noise in a total, in units of the sensitivity."""
    n_sums: int

    def __check_init__(self):
        _checks.whole("rounds", self.n_sums, minimum=2)

    def run(self, block: Block) -> Generator[Request, Any, Outcome]:
        """EM by noisy sums, then all else at home."""
        rows, weights = block.data.rows, block.data.row_weights
        if np.isnan(rows).any():
            raise JobError("rows with missing cells are not pooled privately: drop or impute them")
        d = rows.shape[1]
        theta = Mixture(np.ones(1), np.zeros((1, d)), self.clip**2 / d * np.eye(d)[None])
        total = yield NoisySum(sums_of(theta, rows, weights))
        if not np.isfinite(total).all():
            raise JobError("a site left before the first sum: submit the job without it")
        n_rows = max(float(total[0, 0]), 1.0)
        theta = _places(self._stepped(theta, total), int(block.n_components[0]), block.seed)
        for _ in range(self.n_sums - 1):
            total = yield NoisySum(sums_of(theta, rows, weights))
            if np.isfinite(total).all():  # else a member has left, and what is known stays
                theta = self._stepped(theta, total)
        return self._at_home(block, theta, n_rows)

    def _stepped(self, theta: Mixture, total: np.ndarray) -> Mixture:
        """The M-step of a noisy total; shapes are shrunk as far as the noise drowns them."""
        deviation, d = self.noise * SENSITIVITY, theta.n_features
        strength = max(float(self.method.prior.strength), deviation * reach(d) ** 2)
        found, prior = statistics_of(theta, total, deviation), ShapePrior(strength)
        stacked = jax.tree.map(lambda part: jnp.asarray(part)[None], theta)
        kind = self.method.covariance_type
        return m_step(stacked, found, self.method.reg_covar, prior, kind).to_numpy().at(0)

    def _at_home(self, block: Block, theta: Mixture, n_rows: float) -> Outcome:
        """Levels of own rows beside everyone's mixture, as for a node that comes later."""
        everyone = jax.tree.map(lambda part: np.stack([part[None]] * len(LEVELS)), theta)
        even, nothing = np.full((1, len(LEVELS)), 1 / len(LEVELS)), np.zeros((1, 1 + len(LEVELS)))
        levels = Levels(LEVELS, everyone, even, nothing[:, 1:], np.zeros(1, np.int64), nothing)
        home = replace(self.method, levels=LEVELS)
        return home.join(block, levels, np.array([n_rows]), Diagnostics({}))


def shortened(rows: np.ndarray, longest: float) -> np.ndarray:
    """Vectors of at most this length."""
    length = np.linalg.norm(rows, axis=-1, keepdims=True)
    return rows * np.minimum(1.0, longest / np.maximum(length, np.finfo(np.float64).tiny))


def sums_of(theta: Mixture, rows: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """(components, numbers) what rows add: masses, first and second moments of shortened rows."""
    off = rows[None] - theta.means[:, None]
    u = np.linalg.solve(np.linalg.cholesky(theta.covariances), np.swapaxes(off, 1, 2))
    u = shortened(np.swapaxes(u, 1, 2) / reach(theta.n_features), 1.0)
    i, j = np.triu_indices(theta.n_features)
    products = u[..., i] * u[..., j] * np.where(i == j, 1.0, np.sqrt(2))
    numbers = np.concatenate([np.ones((*u.shape[:2], 1)), u, products], axis=-1)
    shares = theta.responsibilities(rows) * weights[:, None]
    return np.einsum("mk,kmp->kp", shares, numbers)


def statistics_of(theta: Mixture, total: np.ndarray, deviation: float) -> Statistics:
    """Such a total, with noise of this standard deviation, as sums that rows could have.

    Components of too little mass are as `theta` has them.
    """
    d, rho = theta.n_features, reach(theta.n_features)
    i, j = np.triu_indices(d)
    faint = total[:, 0] < FAINT * deviation
    mass = np.maximum(total[:, 0], 1.0)
    shift = np.where(faint[:, None], 0.0, total[:, 1 : 1 + d] * rho / mass[:, None])
    spread = np.zeros((len(mass), d, d))
    spread[:, i, j] = total[:, 1 + d :] * rho**2 / np.where(i == j, 1.0, np.sqrt(2))
    spread[:, j, i] = spread[:, i, j]
    spread = spread / mass[:, None, None] - shift[:, :, None] * shift[:, None]
    values, vectors = np.linalg.eigh(np.where(faint[:, None, None], np.eye(d), spread))
    least = np.clip(deviation * rho**2 / mass, 1e-3, 1.0)[:, None]
    spread = (vectors * np.maximum(values, least)[:, None]) @ np.swapaxes(vectors, 1, 2)
    factor = np.linalg.cholesky(theta.covariances)
    first = mass[:, None] * (factor @ shift[..., None])[..., 0]
    second = spread + shift[:, :, None] * shift[:, None]
    second = mass[:, None, None] * (factor @ second @ np.swapaxes(factor, 1, 2))
    return Statistics(np.zeros(1), mass[None], first[None], second[None])


def reach(d: int) -> float:
    """Length at which rows are cut off, in standard deviations of a component."""
    return d**0.5 + MORE


def _places(one: Mixture, k: int, seed: int) -> Mixture:
    """`k` components that share one Gaussian out: centres of draws from it."""
    drawn = np.random.default_rng(seed).standard_normal((DRAWS * k, one.n_features))
    drawn = one.means + drawn @ np.linalg.cholesky(one.covariances[0]).T
    centres = KMeans(k, n_init=1, random_state=seed).fit(drawn).cluster_centers_
    return Mixture(np.full(k, 1 / k), centres, np.repeat(one.covariances / k, k, axis=0))
