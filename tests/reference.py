"""Algorithm 1 as a plain NumPy loop over nodes, written from the paper alone.

Nothing here imports the package. A mixture is a tuple (weights, means, covariances); a state is a
list of them, one per node. Densities come from scipy.stats, the matching from all permutations, the
projection from eigh and a sort, and gradients are coded from their derivation:

* ln p(x) differentiates to N_c(x) / p(x) in the weight, r_c P (x - mu) in the mean and
  r_c (P (x - mu)(x - mu)' P - P) / 2 in the covariance, P the inverse covariance, r_c the
  responsibility.
* E k(x, y) = g of eq. (5) differentiates to -g S^-1 delta in the first mean and to
  g (S^-1 delta delta' S^-1 - S^-1) / 2 in the first covariance.

Covariance gradients treat all d^2 entries as free, as the paper's stacked vector does.
"""

from __future__ import annotations

from itertools import permutations

import numpy as np
from scipy.special import logsumexp
from scipy.stats import multivariate_normal

# densities, eq. (1) ------------------------------------------------------------------------------


def log_joint(theta, x):
    """ln pi_c + ln N(x; mu_c, Sigma_c), (rows, components); absent components are left at -inf."""
    weights, means, covariances = theta
    columns = [
        np.log(w) + np.atleast_1d(multivariate_normal.logpdf(x, mean, cov))
        if w > 0
        else np.full(len(x), -np.inf)
        for w, mean, cov in zip(weights, means, covariances, strict=True)
    ]
    return np.stack(columns, axis=1)


def log_density(theta, x):
    return logsumexp(log_joint(theta, x), axis=1)


def local_loss(theta, x):
    """Eq. (1)."""
    return -log_density(theta, x).mean()


def local_loss_gradient(theta, x):
    weights, means, covariances = theta
    joint = log_joint(theta, x)
    responsibility = np.exp(joint - logsumexp(joint, axis=1, keepdims=True))
    g_weights, g_means, g_covariances = [], [], []
    for c, (w, mean, cov) in enumerate(zip(weights, means, covariances, strict=True)):
        inverse = np.linalg.inv(cov)
        total_mean, total_cov = np.zeros_like(mean), np.zeros_like(cov)
        for r, row in zip(responsibility[:, c], x, strict=True):
            v = inverse @ (row - mean)
            total_mean += r * v
            total_cov += r * 0.5 * (np.outer(v, v) - inverse)
        g_weights.append(-responsibility[:, c].mean() / w)
        g_means.append(-total_mean / len(x))
        g_covariances.append(-total_cov / len(x))
    return np.array(g_weights), np.array(g_means), np.array(g_covariances)


# eq. (3) -----------------------------------------------------------------------------------------


def squared_distance(a, b):
    return sum(((x - y) ** 2).sum() for x, y in zip(a, b, strict=True))


def relabelled(theta, order):
    return tuple(part[list(order)] for part in theta)


def best_match(own, neighbour):
    """The neighbour with its components permuted to be nearest to ours: all permutations tried."""
    k = len(own[0])
    candidates = [relabelled(neighbour, order) for order in permutations(range(k))]
    return min(candidates, key=lambda candidate: squared_distance(own, candidate))


def euclidean(own, neighbour):
    return squared_distance(own, best_match(own, neighbour))


# eq. (4) -----------------------------------------------------------------------------------------


def kl_on(own, neighbour, points):
    """Eq. (4) on given points."""
    return (log_density(neighbour, points) - log_density(own, points)).mean()


# eq. (5) -----------------------------------------------------------------------------------------


def expected_kernel(mean, cov, other_mean, other_cov, sigma):
    """Eq. (5) as printed."""
    d = len(mean)
    S = cov + other_cov + sigma**2 * np.eye(d)
    delta = mean - other_mean
    exponent = -0.5 * delta @ np.linalg.solve(S, delta)
    return sigma**d / np.sqrt(np.linalg.det(S)) * np.exp(exponent)


def inner(p, q, sigma):
    total = 0.0
    for w, mean, cov in zip(*p, strict=True):
        for v, other_mean, other_cov in zip(*q, strict=True):
            total += w * v * expected_kernel(mean, cov, other_mean, other_cov, sigma)
    return total


def mmd(own, neighbour, bandwidths=(0.5, 1.0, 2.0, 4.0)):
    return sum(
        inner(own, own, s) - 2 * inner(own, neighbour, s) + inner(neighbour, neighbour, s)
        for s in bandwidths
    )


def inner_gradient(p, q, sigma):
    """Gradient of <p, q> in p, with q a constant."""
    gradient = [np.zeros_like(part) for part in p]
    for c, (w, mean, cov) in enumerate(zip(*p, strict=True)):
        for v, other_mean, other_cov in zip(*q, strict=True):
            g = expected_kernel(mean, cov, other_mean, other_cov, sigma)
            inverse = np.linalg.inv(cov + other_cov + sigma**2 * np.eye(len(mean)))
            direction = inverse @ (mean - other_mean)
            gradient[0][c] += v * g
            gradient[1][c] += w * v * g * -direction
            gradient[2][c] += w * v * g * 0.5 * (np.outer(direction, direction) - inverse)
    return gradient


def mmd_gradient(own, neighbour, bandwidths):
    """<p, p> depends on p twice over, so its gradient is twice that of its first place."""
    total = [np.zeros_like(part) for part in own]
    for sigma in bandwidths:
        ours = inner_gradient(own, own, sigma)
        theirs = inner_gradient(own, neighbour, sigma)
        total = [t + 2 * a - 2 * b for t, a, b in zip(total, ours, theirs, strict=True)]
    return total


# Assumption 1 ------------------------------------------------------------------------------------


def project_simplex(v, total=1.0):
    """Nearest point of {x >= 0, sum x = total}, by sorting."""
    u = np.sort(v)[::-1]
    excess = (np.cumsum(u) - total) / np.arange(1, len(v) + 1)
    last = np.flatnonzero(u > excess)[-1]
    return np.maximum(v - excess[last], 0.0)


def project(theta, bounds):
    """`bounds` are pi_min, B_mu, sigma_min^2, sigma_max^2."""
    floor, radius, low, high = bounds
    weights, means, covariances = theta
    k = len(weights)
    weights = floor + project_simplex(weights - floor, 1 - k * floor)
    means = np.array([m * min(1.0, radius / max(np.linalg.norm(m), 1e-300)) for m in means])
    clipped = []
    for cov in covariances:
        values, vectors = np.linalg.eigh(0.5 * (cov + cov.T))
        clipped.append(vectors @ np.diag(np.clip(values, low, high)) @ vectors.T)
    return weights, means, np.array(clipped)


# eq. (2), eq. (6), Algorithm 1 -------------------------------------------------------------------


def objective(thetas, rows, neighbours, alpha, D):
    """Eq. (2) as printed, every edge from both ends; `neighbours[i]` maps j to the edge weight."""
    return sum(
        local_loss(theta, x) + alpha * sum(w * D(theta, thetas[j]) for j, w in around.items())
        for theta, x, around in zip(thetas, rows, neighbours, strict=True)
    )


class EuclideanPull:
    """Line 3 and the g of eq. (6) for GTV-Eucl."""

    def freeze(self, t, i, j, own, neighbour):
        return best_match(own, neighbour)

    def gradient(self, own, frozen):
        return [2 * (a - b) for a, b in zip(own, frozen, strict=True)]

    def value(self, own, frozen):
        return squared_distance(own, frozen)


class MMDPull:
    def __init__(self, bandwidths):
        self.bandwidths = bandwidths

    def freeze(self, t, i, j, own, neighbour):
        return neighbour

    def gradient(self, own, frozen):
        return mmd_gradient(own, frozen, self.bandwidths)

    def value(self, own, frozen):
        return mmd(own, frozen, self.bandwidths)


class KLPull:
    """`draw(t, i, j, neighbour)` gives the points node i draws from its neighbour j in round t."""

    def __init__(self, draw):
        self.draw = draw

    def freeze(self, t, i, j, own, neighbour):
        return self.draw(t, i, j, neighbour), neighbour

    def gradient(self, own, frozen):
        return local_loss_gradient(own, frozen[0])

    def value(self, own, frozen):
        return kl_on(own, frozen[1], frozen[0])


def algorithm1(thetas, rows, neighbours, pull, alpha, rate, n_rounds, n_local_steps, bounds):
    """All states, the start first, and per state the local losses and pulls of every node."""
    thetas = [project(theta, bounds) for theta in thetas]
    states, losses, pulls = [thetas], [], []
    for t in range(n_rounds + 1):
        frozen = [
            {j: pull.freeze(t, i, j, thetas[i], thetas[j]) for j in neighbours[i]}
            for i in range(len(thetas))
        ]
        losses.append([local_loss(theta, x) for theta, x in zip(thetas, rows, strict=True)])
        pulls.append(
            [
                alpha * sum(w * pull.value(thetas[i], frozen[i][j]) for j, w in around.items())
                for i, around in enumerate(neighbours)
            ]
        )
        if t == n_rounds:
            break
        new = []
        for i, theta in enumerate(thetas):
            for _ in range(n_local_steps):
                step = local_loss_gradient(theta, rows[i])
                for j, w in neighbours[i].items():
                    g = pull.gradient(theta, frozen[i][j])
                    step = [a + alpha * w * b for a, b in zip(step, g, strict=True)]
                moved = [a - rate * b for a, b in zip(theta, step, strict=True)]
                theta = project(moved, bounds)
            new.append(theta)
        thetas = new
        states.append(thetas)
    return states, np.array(losses), np.array(pulls)


# finite differences ------------------------------------------------------------------------------


def numerical_gradient(function, theta, steps):
    """Central differences of fourth order in every entry; `steps` per part of the mixture.

    Covariances are symmetrised after an entry is moved, so that the gradient treats their entries
    as free. The error is h^4 times a fifth derivative plus rounding of the value over h.
    """
    gradient = []
    for p, part in enumerate(theta):
        result = np.zeros_like(part)
        for index in np.ndindex(part.shape):
            h = steps[p]

            def at(offset, p=p, index=index):
                moved = [np.array(x) for x in theta]
                moved[p][index] += offset
                moved[2] = 0.5 * (moved[2] + np.swapaxes(moved[2], -1, -2))
                return function(moved)

            slope = 8 * (at(h) - at(-h)) - (at(2 * h) - at(-2 * h))
            result[index] = slope / (12 * h)
        gradient.append(result)
    return gradient
