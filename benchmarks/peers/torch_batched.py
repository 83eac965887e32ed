"""Peer P3: PyTorch with autograd, batched over all nodes and all directed edges."""

from __future__ import annotations

import torch
from scipy.optimize import linear_sum_assignment

from benchmarks.peers.torch_math import draw, inner, log_density, project
from benchmarks.problems import ALPHA, Problem


class TorchBatched:
    name = "P3 PyTorch batched"

    def __init__(self, problem: Problem, coupling: str, dtype: str = "float64"):
        self.problem, self.coupling, self.alpha = problem, coupling, ALPHA[coupling]
        self.dtype = getattr(torch, dtype)
        self.rows = torch.tensor(problem.rows, dtype=self.dtype)
        receiver, sender, weight = problem.directed()
        self.receiver, self.sender = torch.tensor(receiver), torch.tensor(sender)
        self.weight = torch.tensor(weight, dtype=self.dtype)

    def run(self):
        p = self.problem
        generator = torch.Generator().manual_seed(0)
        theta = tuple(torch.tensor(part, dtype=self.dtype) for part in p.theta.parts)
        for _ in range(p.n_rounds):
            frozen = self._freeze(theta, generator)
            for _ in range(p.n_local_steps):
                theta = tuple(part.detach().requires_grad_() for part in theta)
                loss = -log_density(*theta, self.rows).mean(-1).sum()
                loss = loss + self.alpha * (self.weight * self._discrepancy(theta, frozen)).sum()
                gradient = torch.autograd.grad(loss, theta)
                moved = [x - p.learning_rate * g for x, g in zip(theta, gradient, strict=False)]
                theta = project(*(x.detach() for x in moved))
        return tuple(part.numpy() for part in theta)

    def _freeze(self, theta, generator):
        """What every directed edge keeps of its sender for this round."""
        sent = tuple(part[self.sender] for part in theta)
        if self.coupling == "euclidean":
            own = tuple(part[self.receiver] for part in theta)
            cost = sum(
                (a[:, :, None] - b[:, None]).square().flatten(3).sum(-1)
                if a.ndim > 2
                else (a[:, :, None] - b[:, None]).square()
                for a, b in zip(own, sent, strict=False)
            )
            orders = [linear_sum_assignment(one)[1] for one in cost.numpy()]
            orders = torch.stack([torch.as_tensor(order) for order in orders])
            edge = torch.arange(len(orders))[:, None]
            return tuple(part[edge, orders] for part in sent)
        if self.coupling == "kl":
            points = draw(sent, generator)
            return points, log_density(*sent, points)
        return sent, inner(theta, theta)[self.sender]

    def _discrepancy(self, theta, frozen):
        own = tuple(part[self.receiver] for part in theta)
        if self.coupling == "euclidean":
            return sum(
                (a - b).square().flatten(1).sum(-1) for a, b in zip(own, frozen, strict=False)
            )
        if self.coupling == "kl":
            return (frozen[1] - log_density(*own, frozen[0])).mean(-1)
        return inner(theta, theta)[self.receiver] - 2 * inner(own, frozen[0]) + frozen[1]
