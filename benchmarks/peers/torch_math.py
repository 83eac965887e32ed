"""What both PyTorch peers share: densities, discrepancies and the projection, for any batch."""

from __future__ import annotations

import math

import torch

from benchmarks.problems import BANDWIDTHS, BOUNDS, KL_SAMPLES


def log_density(pi, mu, cov, x):
    """(..., m): log density of rows (..., m, d) under mixtures (..., k)."""
    factor = torch.linalg.cholesky(cov)
    delta = x.unsqueeze(-3) - mu.unsqueeze(-2)  # (..., k, m, d)
    white = torch.linalg.solve_triangular(factor, delta.transpose(-1, -2), upper=False)
    logdet = 2 * torch.diagonal(factor, dim1=-2, dim2=-1).log().sum(-1)
    constant = pi.log() - 0.5 * (logdet + mu.shape[-1] * math.log(2 * math.pi))
    return torch.logsumexp(constant.unsqueeze(-1) - 0.5 * white.square().sum(-2), dim=-2)


def inner(p, q):
    """<p, q> of eq. (5) for batches of mixtures."""
    d = p[1].shape[-1]
    delta = p[1].unsqueeze(-2) - q[1].unsqueeze(-3)
    sums = p[2].unsqueeze(-3) + q[2].unsqueeze(-4)
    sigma = torch.tensor(BANDWIDTHS, dtype=delta.dtype)
    eye = torch.eye(d, dtype=delta.dtype)
    s = sums.unsqueeze(-3) + (sigma**2)[:, None, None] * eye  # (..., k, k, bandwidths, d, d)
    factor = torch.linalg.cholesky(s)
    white = torch.linalg.solve_triangular(
        factor, delta[..., None, :, None].expand(*s.shape[:-1], 1), upper=False
    )[..., 0]
    logdet = 2 * torch.diagonal(factor, dim1=-2, dim2=-1).log().sum(-1)
    g = torch.exp(d * sigma.log() - 0.5 * (logdet + white.square().sum(-1))).sum(-1)
    return torch.einsum("...c,...e,...ce->...", p[0], q[0], g)


def draw(theta, generator):
    """Rows (batch, samples, d) from a batch of mixtures."""
    pi, mu, cov = theta
    which = torch.multinomial(pi, KL_SAMPLES, replacement=True, generator=generator)
    batch = torch.arange(len(pi))[:, None]
    noise = torch.randn(*which.shape, mu.shape[-1], 1, generator=generator, dtype=mu.dtype)
    factor = torch.linalg.cholesky(cov)
    return mu[batch, which] + (factor[batch, which] @ noise)[..., 0]


@torch.no_grad()
def project(pi, mu, cov):
    """Onto the feasible set, for any batch."""
    floor, k = BOUNDS.min_weight, pi.shape[-1]
    u = torch.sort(pi - floor, descending=True).values
    tau = (torch.cumsum(u, -1) - (1 - k * floor)) / torch.arange(1, k + 1, dtype=pi.dtype)
    count = (u > tau).sum(-1, keepdim=True)
    pi = torch.clamp(pi - floor - torch.gather(tau, -1, count - 1), min=0) + floor
    norm = torch.linalg.norm(mu, dim=-1, keepdim=True)
    mu = mu * torch.clamp(BOUNDS.max_mean_norm / norm.clamp(min=1e-30), max=1)
    values, vectors = torch.linalg.eigh(0.5 * (cov + cov.transpose(-1, -2)))
    values = values.clamp(BOUNDS.min_variance, BOUNDS.max_variance)
    return pi, mu, (vectors * values.unsqueeze(-2)) @ vectors.transpose(-1, -2)
