"""How wrong KL by sigma points is: against a million drawn points, beside KL by fifty."""

from __future__ import annotations

import numpy as np

PAIRS, SEEDS = 20, 10
"""Pairs of mixtures for every line of the table; sets of fifty points drawn for each pair."""
TRUTH = 1_000_000
STEP = 0.3
"""How far apart neighbours that agree are: standard deviation of the difference of their means."""


def errors() -> list[dict]:
    """Root mean square errors, over pairs that are near each other and over unrelated ones."""
    return [_line(d, spread, near) for near in (True, False) for d in (2, 10) for spread in (1, 5)]


def _line(d: int, spread: float, near: bool) -> dict:
    from fedmixtures import KL, UnscentedKL

    truth, noise, points, drawn = [], [], [], []
    for pair in range(PAIRS):
        own, neighbour = _pair(np.random.default_rng([pair, d]), d, spread, near)
        x, _ = neighbour.sample(TRUTH, pair)
        ratio = neighbour.log_density(x) - own.log_density(x)
        truth.append(ratio.mean())
        noise.append(ratio.std() / np.sqrt(TRUTH))
        points.append(UnscentedKL().between(own, neighbour) - truth[-1])
        drawn += [KL(50).between(own, neighbour, seed) - truth[-1] for seed in range(SEEDS)]
    square = lambda values: float(np.sqrt(np.mean(np.square(values))))
    line = {
        "pairs": "near" if near else "unrelated",
        "d": d,
        "spread": spread,
        "median_kl": float(np.median(truth)),
        "error_sigma_points": square(points),
        "bias_sigma_points": float(np.mean(points)),
        "error_fifty_drawn": square(drawn),
        "error_of_truth": square(noise),
    }
    print(line, flush=True)
    return line


def _pair(rng: np.random.Generator, d: int, spread: float, near: bool):
    """Two mixtures of five components; covariances have eigenvalues from 0.2 to 2."""
    own = _mixture(rng, d, spread)
    other = _mixture(rng, d, spread)
    if near:
        means = own.means + STEP * rng.standard_normal(own.means.shape)
        other = type(own)(other.weights, means, own.covariances * rng.uniform(0.7, 1.4, (5, 1, 1)))
    return own, other


def _mixture(rng: np.random.Generator, d: int, spread: float):
    from fedmixtures import Mixture

    turn = np.linalg.qr(rng.standard_normal((5, d, d)))[0]
    covariances = np.einsum("kij,kj,klj->kil", turn, rng.uniform(0.2, 2, (5, d)), turn)
    covariances = 0.5 * (covariances + np.swapaxes(covariances, -1, -2))
    return Mixture(
        rng.dirichlet(np.full(5, 5.0)), spread * rng.standard_normal((5, d)), covariances
    )
