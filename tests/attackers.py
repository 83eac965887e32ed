"""What attackers make of what they see: NumPy and SciPy alone, for any version of the library."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import combinations
from typing import Any

import numpy as np
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
    return _voronoi_cells(np.concatenate([centre[None], outer]))


def _voronoi_cells(points: np.ndarray) -> tuple[np.ndarray, ...]:
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


# A3: statistics of many steps under known mixtures are equations for the rows.


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


class Reader:
    """Rows of others from sums over them, under mixtures that are known.

    Sums of ln p, r_c, r_c y and r_c yy' with y = L_c^-1 (x - mu_c) are equations for the rows, each
    with an error of known size; the last mixture is what a row is like before any of them.
    """

    def __init__(self, thetas, totals, errors):
        """Weights, means and covariances; flat sums; standard deviations of their errors."""
        parts = [np.stack(part) for part in zip(*thetas, strict=True)]
        totals, errors = np.stack(totals), np.stack(errors)
        weights, means, units = parts[0], parts[1], np.linalg.inv(np.linalg.cholesky(parts[2]))
        self.d = means.shape[-1]
        constant = np.log(np.maximum(weights, 1e-300)) + np.linalg.slogdet(units)[1]
        constant = constant - 0.5 * self.d * np.log(2 * np.pi)
        self.steps = constant, means, units, errors
        self.wanted = (totals / errors).ravel()
        self.last = [part[-1][weights[-1] > 0] for part in parts]

    def added(self, x: np.ndarray) -> np.ndarray:
        """What every row adds to all sums, in units of their errors."""
        return self._compiled()[0](x, *self.steps)

    def slope(self, x: np.ndarray) -> np.ndarray:
        """And how that changes with the row: (rows, sums, features)."""
        return self._compiled()[1](x, *self.steps)

    @staticmethod
    @cache
    def _compiled() -> tuple[Callable, Callable]:
        import jax
        import jax.numpy as jnp

        def added(x, constant, means, units, errors):
            upper = np.triu_indices(means.shape[-1])
            off = jnp.einsum("ekij,ekj->eki", units, x[None, None] - means)
            joint = constant - 0.5 * jnp.square(off).sum(-1)
            r = jax.nn.softmax(joint, axis=1)[..., None]
            outer = (off[..., :, None] * off[..., None, :])[..., upper[0], upper[1]]
            sums = [jax.nn.logsumexp(joint, axis=1)[:, None], r[..., 0]]
            sums += [(r * part).reshape(len(r), -1) for part in (off, outer)]
            return (jnp.concatenate(sums, axis=1) / errors).ravel()

        by_row = lambda function: jax.jit(jax.vmap(function, (0, None, None, None, None)))

        def double(function):
            def called(*arrays):
                with jax.enable_x64(True):
                    return np.asarray(function(*arrays))

            return called

        return double(by_row(added)), double(by_row(jax.jacfwd(added)))

    def known(self, x: np.ndarray) -> np.ndarray:
        """Information matrix of all rows by the sums alone."""
        slope = np.moveaxis(self.slope(x), 1, 0).reshape(len(self.wanted), -1)
        return slope.T @ slope

    def information(self, x: np.ndarray, blur: float = 1.0) -> tuple[np.ndarray, ...]:
        """Objective, gradient and information matrix of all rows, sums and prior together.

        `blur`: as if all errors were so many times as large.
        """
        residual = (self.added(x).sum(0) - self.wanted) / blur
        slope = self.slope(x) / blur
        joint = log_joint(*self.last, x)
        r = np.exp(joint - logsumexp(joint, axis=1, keepdims=True))
        inverse = np.linalg.inv(self.last[2])
        off = x[:, None] - self.last[1]
        value = 0.5 * residual @ residual - logsumexp(joint, axis=1).sum()
        gradient = np.einsum("mei,e->mi", slope, residual)
        gradient += np.einsum("mk,kij,mkj->mi", r, inverse, off)
        slope = np.moveaxis(slope, 1, 0).reshape(len(residual), -1)
        matrix = slope.T @ slope
        for i, prior in enumerate(np.einsum("mk,kij->mij", r, inverse)):
            here = slice(i * self.d, (i + 1) * self.d)
            matrix[here, here] += prior
        return value, gradient.ravel(), matrix

    def solved(
        self, start: np.ndarray, n_steps: int = 100, blur: float = 1.0
    ) -> tuple[np.ndarray, float]:
        """The most probable rows near a start (Levenberg and Marquardt), and their objective."""
        x, damping = start, 1.0
        value, gradient, matrix = self.information(x, blur)
        for _ in range(n_steps):
            damped = matrix + damping * np.diag(np.diagonal(matrix))
            new = x - np.linalg.solve(damped, gradient).reshape(x.shape)
            found = self.information(new, blur)
            if found[0] < value:
                stands = value - found[0] < 1e-6 * abs(value)
                x, (value, gradient, matrix), damping = new, found, damping / 4
                if stands:
                    break
            else:
                damping *= 5
        return x, value

    def best(self, m: int, rng, starts: int, blurs: tuple[float, ...] = (1.0,)) -> np.ndarray:
        """The best of several solutions for `m` rows, each by way of coarser sums."""
        found = []
        for _ in range(starts):
            x, value = self.guess(m, rng), np.inf
            for blur in blurs:
                x, value = self.solved(x, blur=blur)
            found.append((x, value))
        return min(found, key=lambda one: one[1])[0]

    def ideal(self, rows: np.ndarray, rng, draws: int, more: Any = 0.0) -> list[np.ndarray]:
        """What the best of all readers could make of the sums: rows, off by the least error.

        Draws from the inverse of the information matrix at the true rows (Cramer and Rao): as if
        the attacker had begun there and knew which is which. `more`: information from elsewhere.
        """
        values, vectors = np.linalg.eigh(self.information(rows)[2] + more)
        # No direction is known less than before; eigenvalues much smaller than the others are lost.
        prior = 1 / np.linalg.eigvalsh(self.last[2]).max()
        deviations = 1 / np.sqrt(np.maximum(values, prior))
        off = [vectors @ (deviations * rng.standard_normal(len(values))) for _ in range(draws)]
        return [rows + one.reshape(rows.shape) for one in off]

    def guess(self, m: int, rng) -> np.ndarray:
        """Rows drawn from the last mixture, whatever the sums say."""
        weights, means, covariances = self.last
        which = rng.choice(len(weights), m, p=weights / weights.sum())
        factor = np.linalg.cholesky(covariances)[which]
        return means[which] + np.einsum("mij,mj->mi", factor, rng.standard_normal((m, self.d)))


# A4: two clusterings that differ by a row give it away.


def clusters_of(weights, means, covariances, m: int, reg_covar: float) -> list[tuple]:
    """Number, sum and sum of squares of every cluster that a k-means start would have."""
    d = means.shape[1]
    found = []
    for w, mu, cov in zip(weights, means, covariances, strict=True):
        if w > 0:
            n = w * m
            found.append((n, n * mu, n * (cov - reg_covar * np.eye(d) + np.outer(mu, mu))))
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
