r"""DFMR: leave out mixtures that are far from the middle one, reduce the rest to k components.

Zhang, Tan and Chen (JRSSB 2026, arXiv 2407.13980): *distance filtered mixture reduction*. With
$D_{ij}$ the $L_2$ distance of local densities (closed form), the centre
$c = \arg\min_i \mathrm{median}_j D_{ij}$ and $r = \mathrm{median}_j D_{cj}$, machines with
$D_{ci} \le \rho r$, $\rho = m^p$, are kept. Their components, weighted by rows, are reduced to k
by turns of assigning each to the nearest of k in KL and matching moments, from every kept local fit
as a start; the best is the answer. Asymptotically the global maximum likelihood, with up to 40 %
of machines failing.
"""

from __future__ import annotations

from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from fedmixtures import _checks
from fedmixtures._ties import clearly_less, first_least
from fedmixtures._types import Array
from fedmixtures.kernels.compiling import jit_in_order
from fedmixtures.methods.base import Outcome
from fedmixtures.methods.compared.baselines import FromLocalFits
from fedmixtures.methods.compared.pooling import moment_match
from fedmixtures.methods.protocol import Block, Broadcast
from fedmixtures.mixture.covariance_types import of_type
from fedmixtures.mixture.linear import inverse_cholesky
from fedmixtures.mixture.mixture import Mixture


class DFMR(FromLocalFits):
    """One message: every node filters and reduces the mixtures of its closed neighbourhood.

    On a complete graph that is the authors' form, whose server holds all local fits: all nodes end
    with one mixture. The majority of a neighbourhood must be of one kind; the method does not ask
    whether that is the node's own.

    Parameters
    ----------
    exponent
        p of the filter's width $m^p$; the authors' theory wants it small, at most 0.1.
    max_iter
        Turns of assigning and matching, at most.
    """

    supports_float32: ClassVar = False

    exponent: float = 0.1
    max_iter: int = 100

    def __check_init__(self):
        _checks.positive("exponent", self.exponent, allow_zero=True)
        _checks.whole("max_iter", self.max_iter)

    def run(self, block: Block):
        """Send, filter, reduce."""
        message = block.data.total_weights(), (yield self.local(block))
        rows, table = jax.tree.map(np.asarray, (yield Broadcast(message)))
        found, kept = {}, np.zeros(len(block.receiver), bool)
        results = []
        for i, own in enumerate(block.data.label_hashes.tolist()):
            edges = np.flatnonzero(block.receiver == i)
            lines = {own: block.line[i]}
            lines |= dict(zip(block.neighbour[edges].tolist(), block.sender[edges], strict=True))
            # In the order of labels, so that nodes with the same neighbours reduce alike, and once.
            members = tuple(int(lines[label]) for label in sorted(lines))
            if members not in found:
                near = np.array(members)
                stays = near[central(l2_distances(table.at(near)), self.exponent)]
                how = self.max_iter, self.covariance_type
                found[members] = reduced(table.at(stays), rows[stays], *how), stays
            mixture, stays = found[members]
            kept[edges] = np.isin(block.sender[edges], stays)
            results.append(mixture)
        return Outcome(Mixture.stack(results), edges={"kept": kept})


def l2_distances(mixtures: Mixture) -> np.ndarray:
    r"""$\|p_i - p_j\|_2$ of a stack of mixtures, by $\int N_a N_b = N(\mu_a; \mu_b, S_a + S_b)$."""
    inner = np.asarray(_inner(mixtures))
    own = np.diagonal(inner)
    return np.sqrt(np.maximum(own[:, None] + own[None] - 2 * inner, 0.0))


@jit_in_order
def _inner(mixtures):
    weights, means, covariances = map(jnp.asarray, mixtures.parts)
    m, k, d = means.shape
    w, mu, spread = weights.reshape(-1), means.reshape(-1, d), covariances.reshape(-1, d, d)

    def line(component):
        weight, mean, covariance = component
        inverse, log_determinant = inverse_cholesky(covariance[None] + spread)
        white = jnp.einsum("aij,aj->ai", inverse, mean[None] - mu)
        exponent = jnp.square(white).sum(-1) + log_determinant + d * jnp.log(2 * jnp.pi)
        return weight * w * jnp.exp(-exponent / 2)

    return jax.lax.map(line, (w, mu, spread)).reshape(m, k, m, k).sum((1, 3))


def central(distances: np.ndarray, exponent: float) -> np.ndarray:
    """Which mixtures are within the filter's width of the middle one."""
    middle = first_least(np.median(distances, axis=1), scale=float(distances.max()))
    width = len(distances) ** exponent * np.median(distances[middle])
    return np.flatnonzero(~clearly_less(width, distances[middle]))


def reduced(
    mixtures: Mixture, rows: np.ndarray, max_iter: int, covariance_type: str = "full"
) -> Mixture:
    """All components of a stack, weighted by rows, as one mixture: the best over all starts."""
    share = rows / rows.sum()
    d = mixtures.n_features
    weights = (share[:, None] * mixtures.weights).reshape(-1)
    means, covariances = mixtures.means.reshape(-1, d), mixtures.covariances.reshape(-1, d, d)
    many = weights, means, covariances
    how = max_iter, covariance_type
    ends = [reduce_from(many, mixtures.at(i), *how) for i in range(len(rows))]
    return ends[first_least(np.array([cost for _, cost in ends]), scale=1.0)][0]


def reduce_from(
    many: tuple[Array, Array, Array], few: Mixture, max_iter: int, covariance_type: str = "full"
) -> tuple[Mixture, float]:
    """Turns of nearest component and moment matching; the weighted KL never rises."""
    weights, means, covariances = many
    assigned = np.full(len(weights), -1)
    for _ in range(max_iter):
        cost = gaussian_kl(means, covariances, few.means, few.covariances)
        nearest = np.asarray(first_least(cost, axis=1, scale=1.0))
        if (nearest == assigned).all():
            break
        assigned = nearest
        total, mean, spread = moment_match(weights, means, covariances, assigned, few.n_components)
        empty = (total == 0)[:, None]
        few = Mixture(
            total / total.sum(),
            np.where(empty, few.means, mean),
            np.where(empty[..., None], few.covariances, spread),
        )
        few = of_type(few, covariance_type)
    cost = gaussian_kl(means, covariances, few.means, few.covariances)
    return few, float(weights @ cost.min(1))


def gaussian_kl(
    means: Array, covariances: Array, to_means: Array, to_covariances: Array
) -> np.ndarray:
    r"""$KL(N_a \| N_c)$ of every Gaussian a to every c."""
    inverse = np.linalg.inv(to_covariances)
    away = means[:, None] - to_means[None]
    trace = np.einsum("cij,aji->ac", inverse, covariances)
    square = np.einsum("aci,cij,acj->ac", away, inverse, away)
    log_ratio = np.linalg.slogdet(to_covariances)[1] - np.linalg.slogdet(covariances)[1][:, None]
    return 0.5 * (trace + square - means.shape[1] + log_ratio)
