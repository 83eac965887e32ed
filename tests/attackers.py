"""What attackers make of what they see: NumPy and SciPy alone, for any version of the library."""

from __future__ import annotations

from itertools import combinations

import numpy as np
from scipy.optimize import least_squares
from scipy.special import logsumexp
from scipy.stats import rankdata


def hits(found: np.ndarray, rows: np.ndarray, within: float) -> int:
    """How many of the rows lie within so much (in every feature) of something that was found."""
    if not len(found):
        return 0
    away = np.abs(rows[:, None] - np.asarray(found)[None]).max(-1)
    return int((away.min(1) <= within).sum())


def auc(members: np.ndarray, others: np.ndarray) -> float:
    """How often a member scores above another."""
    ranks = rankdata(np.concatenate([members, others]))[: len(members)]
    return float((ranks.sum() - len(members) * (len(members) + 1) / 2) / len(members) / len(others))


# A1, A2: a mixture of equal narrow covariances is a power diagram, whose cells cut off few rows.


def cutting_cells(mixture, m: int, rng) -> tuple[np.ndarray, ...]:
    """Weights, means and covariances: a cell around the centre, the others beyond the outskirts.

    Each outer cell is cut off by a plane with about one of `m` rows of the mixture behind.
    """
    weights, means, covariances = mixture
    k, d = means.shape
    which = rng.choice(k, 4000, p=weights / weights.sum())
    noise = rng.standard_normal((4000, d))
    points = means[which] + np.einsum("mij,mj->mi", np.linalg.cholesky(covariances)[which], noise)
    centre = points.mean(0)
    directions = rng.standard_normal((k - 1, d))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    reach = np.quantile((points - centre) @ directions.T, 1 - 1.4 / m, axis=0)
    outer = centre + 2 * reach[:, None] * directions
    return voronoi_cells(np.concatenate([centre[None], outer]))


def voronoi_cells(points: np.ndarray) -> tuple[np.ndarray, ...]:
    """Weights, means and covariances with one narrow cell around each point."""
    k, d = points.shape
    return np.full(k, 1 / k), points, np.tile(1e-3 * np.eye(d), (k, 1, 1))


def rows_in_cells(mass, first, second) -> np.ndarray:
    """Rows of the cells that hold one or two: solved from sums of 1, x and xx' over each cell."""
    found = []
    for n, s, q in zip(mass, first, second, strict=True):
        if abs(n - 1) < 1e-6:
            found.append(s)
        elif abs(n - 2) < 1e-6:
            spread = q / 2 - np.outer(s / 2, s / 2)
            values, vectors = np.linalg.eigh(spread)
            half = np.sqrt(max(values[-1], 0)) * vectors[:, -1]
            found += [s / 2 + half, s / 2 - half]
    return np.array(found).reshape(-1, first.shape[1])


# A3: statistics of many rounds under known mixtures are equations for the rows.


def log_joint(weights, means, covariances, x) -> np.ndarray:
    """ln pi_c N(x; mu_c, Sigma_c), rows by components."""
    d = means.shape[1]
    off = x[:, None] - means[None]
    inverse = np.linalg.inv(covariances)
    squared = np.einsum("mki,kij,mkj->mk", off, inverse, off)
    _, logdet = np.linalg.slogdet(covariances)
    return np.log(weights) - 0.5 * (squared + logdet + d * np.log(2 * np.pi))


def sums(theta, x) -> np.ndarray:
    """Sums of r_c (1, x, xx') over rows, flat: what pooling adds up."""
    joint = log_joint(*theta, x)
    r = np.exp(joint - logsumexp(joint, axis=1, keepdims=True))
    d = x.shape[1]
    upper = np.triu_indices(d)
    terms = np.concatenate([np.ones((len(x), 1)), x, (x[:, :, None] * x[:, None])[:, *upper]], 1)
    return (r.T @ terms).ravel()


def solve_for_rows(thetas, totals, m: int, rng, errors=None, starts: int = 3) -> np.ndarray:
    """The rows that explain the sums of all rounds best (nonlinear least squares).

    `errors` are standard deviations of the totals' own error (rounding, say), to weigh by.
    """
    import jax
    import jax.numpy as jnp

    weights = 1.0 if errors is None else 1.0 / np.stack(errors)
    wanted = np.stack(totals) * weights
    stacked = [np.stack(parts) for parts in zip(*thetas, strict=True)]
    d = stacked[1].shape[-1]
    upper = np.triu_indices(d)

    def one(pi, mu, cov, x):
        off = x[:, None] - mu[None]
        squared = jnp.einsum("mki,kij,mkj->mk", off, jnp.linalg.inv(cov), off)
        joint = (jnp.log(pi) - 0.5 * jnp.linalg.slogdet(cov)[1])[None] - 0.5 * squared
        r = jax.nn.softmax(joint, axis=1)
        outer = (x[:, :, None] * x[:, None])[:, upper[0], upper[1]]
        return (r.T @ jnp.concatenate([jnp.ones((len(x), 1)), x, outer], 1)).ravel()

    def residual(flat):
        x = flat.reshape(m, d)
        return (jax.vmap(lambda *theta: one(*theta, x))(*stacked) * weights - wanted).ravel()

    with jax.enable_x64(True):
        value, slope = jax.jit(residual), jax.jit(jax.jacfwd(residual))
        best = None
        for _ in range(starts):
            pi, mu, cov = (part[-1] for part in stacked)
            which = rng.choice(len(pi), m, p=pi / pi.sum())
            factor = np.linalg.cholesky(cov)[which]
            begin = mu[which] + np.einsum("mij,mj->mi", factor, rng.standard_normal((m, d)))
            found = least_squares(
                lambda f: np.asarray(value(f)), begin.ravel(),
                jac=lambda f: np.asarray(slope(f)), max_nfev=150,
            )  # fmt: skip
            if best is None or found.cost < best.cost:
                best = found
    return best.x.reshape(m, d)


# A4: two clusterings that differ by a row give it away.


def clusters_of(weights, means, covariances, m: int, ridge: float) -> list[tuple]:
    """Number, sum and sum of squares of every cluster that a k-means start would have."""
    d = means.shape[1]
    found = []
    for w, mu, cov in zip(weights, means, covariances, strict=True):
        if w > 0:
            n = w * m
            found.append((n, n * mu, n * (cov - ridge * np.eye(d) + np.outer(mu, mu))))
    return found


def rows_by_differences(clusters: list[tuple], tolerance: float) -> np.ndarray:
    """Rows x with sums that differ by x and squares that differ by xx': they prove themselves."""
    found = []
    for (n, s, q), (n2, s2, q2) in combinations(clusters, 2):
        sign = round(n2 - n)
        if abs(sign) != 1 or abs(n2 - n - sign) > tolerance:
            continue
        x = sign * (s2 - s)
        if np.abs(sign * (q2 - q) - np.outer(x, x)).max() < tolerance * max(1, np.abs(q).max()):
            found.append(x)
    return np.array(found).reshape(-1, len(clusters[0][1]))


# A5: a gradient step under a known model gives the sums, and sums tell members from others.


def sums_of_step(before, after, rate: float) -> np.ndarray:
    """Mean of r_c (1, x, xx') over the rows, from one gradient step of the local loss."""
    (weights, means, covariances), (w2, mu2, cov2) = before, after
    # The simplex takes a constant off all weights' gradients: the masses sum to one.
    pull = -(weights - w2) / rate
    mass = weights * (pull + (1 - weights @ pull))
    first = np.einsum("kij,kj->ki", covariances, -(means - mu2) / rate)
    slope = (covariances - cov2) / rate
    second = mass[:, None, None] * covariances - 2 * covariances @ slope @ covariances
    cross = first[:, :, None] * means[:, None]
    square = mass[:, None, None] * means[:, :, None] * means[:, None]
    moment = second + cross + np.swapaxes(cross, 1, 2) + square
    upper = np.triu_indices(means.shape[1])
    raw = first + mass[:, None] * means
    return np.concatenate([mass[:, None], raw, moment[:, *upper]], axis=1).ravel()


def sums_of_model(theta) -> np.ndarray:
    """The same means as the model itself has them, as if its fit had come to rest."""
    weights, means, covariances = theta
    upper = np.triu_indices(means.shape[1])
    moment = covariances + means[:, :, None] * means[:, None]
    return (weights[:, None] * np.concatenate(
        [np.ones((len(weights), 1)), means, moment[:, *upper]], axis=1
    )).ravel()  # fmt: skip


def membership_scores(theta, mean_sums, candidates, reference) -> np.ndarray:
    """How well each candidate goes with the sums, against rows of the same population."""
    each = lambda x: np.stack([sums(theta, row[None]) for row in x])
    known = each(reference)
    centre = known.mean(0)
    spread = np.linalg.pinv(np.cov(known.T), rcond=1e-6)
    return (each(candidates) - centre) @ spread @ (mean_sums - centre)


# A10: weights c/m have a smallest common denominator.


def count_from_weights(weights: np.ndarray, error: float, low: int, high: int) -> int:
    """The smallest number of rows of which the weights could be fractions."""
    weights = np.asarray(weights)[np.asarray(weights) > 0]
    for m in range(low, high + 1):
        if np.abs(weights * m - np.round(weights * m)).max() <= error * m:
            return m
    return high
