"""Peer P1: NumPy and SciPy, a loop over nodes and neighbours, closed-form gradients."""

from __future__ import annotations

import numpy as np
from scipy.optimize import linear_sum_assignment
from scipy.special import logsumexp

from benchmarks.problems import ALPHA, BANDWIDTHS, BOUNDS, KL_SAMPLES, Problem


class NumpyLoops:
    name = "P1 NumPy loops"

    def __init__(self, problem: Problem, coupling: str, dtype: str = "float64"):
        self.problem, self.coupling, self.alpha = problem, coupling, ALPHA[coupling]
        self.rows = problem.rows.astype(dtype)
        self.neighbours = [[] for _ in range(problem.n_nodes)]
        for i, j, w in zip(*problem.directed(), strict=True):
            self.neighbours[i].append((j, w))

    def run(self):
        p = self.problem
        rng = np.random.default_rng(0)
        theta = [tuple(part[i].copy() for part in p.theta.parts) for i in range(p.n_nodes)]
        for _ in range(p.n_rounds):
            before, theta = theta, []
            for i, own in enumerate(before):
                frozen = [(self._freeze(own, before[j], rng), w) for j, w in self.neighbours[i]]
                for _ in range(p.n_local_steps):
                    gradient = nll_gradient(own, self.rows[i], np.full(len(self.rows[i]), 1.0))
                    for neighbour, w in frozen:
                        pull = self._pull(own, neighbour)
                        gradient = [
                            g + self.alpha * w * h for g, h in zip(gradient, pull, strict=False)
                        ]
                    moved = [x - p.learning_rate * g for x, g in zip(own, gradient, strict=False)]
                    own = project(*moved)
                theta.append(own)
        return tuple(np.stack(parts) for parts in zip(*theta, strict=False))

    def _freeze(self, own, neighbour, rng):
        if self.coupling == "euclidean":
            cost = sum(
                np.square(a[:, None] - b[None]).reshape(len(a), len(b), -1).sum(-1)
                for a, b in zip(own, neighbour, strict=False)
            )
            order = linear_sum_assignment(cost)[1]
            return tuple(part[order] for part in neighbour)
        if self.coupling == "kl":
            weights, means, covariances = neighbour
            which = rng.choice(len(weights), KL_SAMPLES, p=weights / weights.sum())
            factor = np.linalg.cholesky(covariances)
            noise = rng.standard_normal((KL_SAMPLES, means.shape[1]))
            return means[which] + np.einsum("nij,nj->ni", factor[which], noise)
        return neighbour

    def _pull(self, own, neighbour):
        if self.coupling == "euclidean":
            return [2 * (a - b) for a, b in zip(own, neighbour, strict=False)]
        if self.coupling == "kl":
            return nll_gradient(own, neighbour, np.full(KL_SAMPLES, 1.0))
        return [
            2 * (a - b)
            for a, b in zip(inner_gradient(own, own), inner_gradient(own, neighbour), strict=False)
        ]


def nll_gradient(theta, rows, weights):
    """Gradient of the mean negative log-likelihood in weights, means, covariances."""
    pi, mu, cov = theta
    precision = np.linalg.inv(cov)
    delta = rows[:, None] - mu  # (m, k, d)
    scaled = np.einsum("kij,mkj->mki", precision, delta)
    logdet = np.linalg.slogdet(cov)[1]
    log_joint = np.log(pi) - 0.5 * (
        np.einsum("mki,mki->mk", delta, scaled) + logdet + mu.shape[1] * np.log(2 * np.pi)
    )
    r = np.exp(log_joint - logsumexp(log_joint, axis=1, keepdims=True))
    r *= (weights / weights.sum())[:, None]
    mass = r.sum(0)
    d_mu = -np.einsum("mk,mki->ki", r, scaled)
    d_cov = 0.5 * (
        mass[:, None, None] * precision - np.einsum("mk,mki,mkj->kij", r, scaled, scaled)
    )
    return [-mass / pi, d_mu, d_cov]


def inner_gradient(own, other):
    """Gradient of <own, other> in the first argument, over all pairs of components at once."""
    pi, mu, cov = own
    d = mu.shape[1]
    delta = mu[:, None] - other[1][None]
    gradient = [np.zeros_like(pi), np.zeros_like(mu), np.zeros_like(cov)]
    for sigma in BANDWIDTHS:
        s = cov[:, None] + other[2][None] + sigma**2 * np.eye(d)
        precision = np.linalg.inv(s)
        v = np.einsum("ceij,cej->cei", precision, delta)
        g = sigma**d / np.sqrt(np.linalg.det(s)) * np.exp(-0.5 * np.einsum("cei,cei->ce", delta, v))
        g = g * other[0][None]
        gradient[0] += g.sum(1)
        gradient[1] -= pi[:, None] * np.einsum("ce,cei->ci", g, v)
        outer = np.einsum("ce,cei,cej->cij", g, v, v) - np.einsum("ce,ceij->cij", g, precision)
        gradient[2] += 0.5 * pi[:, None, None] * outer
    return gradient


def project(pi, mu, cov):
    """Onto the feasible set."""
    u = np.sort(pi - BOUNDS.min_weight)[::-1]
    total = 1 - len(pi) * BOUNDS.min_weight
    tau = (np.cumsum(u) - total) / np.arange(1, len(u) + 1)
    pi = (
        np.maximum(pi - BOUNDS.min_weight - tau[np.flatnonzero(u > tau)[-1]], 0) + BOUNDS.min_weight
    )
    norm = np.linalg.norm(mu, axis=1, keepdims=True)
    mu = mu * np.minimum(1, BOUNDS.max_mean_norm / np.maximum(norm, 1e-300))
    values, vectors = np.linalg.eigh(0.5 * (cov + np.swapaxes(cov, 1, 2)))
    values = np.clip(values, BOUNDS.min_variance, BOUNDS.max_variance)
    return pi, mu, np.einsum("kij,kj,klj->kil", vectors, values, vectors)
