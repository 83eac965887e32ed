"""The gradient of a likelihood from the moments of its rows, written out entry by entry."""

from __future__ import annotations

from fedmixtures._types import Array
from fedmixtures.mixture.linear import Triangle, sum_of


def gradient_entries(
    factor: Triangle, mass: Array, first: list[Array], second: Triangle
) -> tuple[list[Array], Triangle]:
    """What `statistics.nll_and_gradient` says of means and covariances (the lower triangle).

    `factor` is the inverse Cholesky factor of the covariance, `first` and `second` are moments.
    """
    d = len(first)
    at = lambda i, j: second[max(i, j)][min(i, j)]
    white = [sum_of(factor[i][j] * first[j] for j in range(i + 1)) for i in range(d)]
    means = [-sum_of(factor[i][j] * white[i] for i in range(j, d)) for j in range(d)]
    half = [
        [sum_of(factor[i][a] * at(a, j) for a in range(i + 1)) for j in range(d)] for i in range(d)
    ]
    middle = [
        [sum_of(half[i][a] * factor[j][a] for a in range(j + 1)) for j in range(i + 1)]
        for i in range(d)
    ]
    for i in range(d):
        middle[i][i] = middle[i][i] - mass
    covariances = [
        [
            -0.5
            * sum_of(
                factor[p][i] * middle[max(p, q)][min(p, q)] * factor[q][j]
                for p in range(i, d)
                for q in range(j, d)
            )
            for j in range(i + 1)
        ]
        for i in range(d)
    ]
    return means, covariances
