"""Peer P2: PyTorch with autograd, a loop over nodes and their neighbours."""

from __future__ import annotations

import torch
from scipy.optimize import linear_sum_assignment

from benchmarks.peers.torch_math import draw, inner, log_density, project
from benchmarks.problems import ALPHA, Problem


class TorchLoops:
    name = "P2 PyTorch per node"

    def __init__(self, problem: Problem, coupling: str, dtype: str = "float64"):
        self.problem, self.coupling, self.alpha = problem, coupling, ALPHA[coupling]
        self.dtype = getattr(torch, dtype)
        self.rows = torch.tensor(problem.rows, dtype=self.dtype)
        self.neighbours = [[] for _ in range(problem.n_nodes)]
        for i, j, w in zip(*problem.directed(), strict=True):
            self.neighbours[i].append((j, float(w)))

    def run(self):
        p = self.problem
        generator = torch.Generator().manual_seed(0)
        start = [torch.tensor(part, dtype=self.dtype) for part in p.theta.parts]
        theta = [tuple(part[i] for part in start) for i in range(p.n_nodes)]
        for _ in range(p.n_rounds):
            before, theta = theta, []
            for i, own in enumerate(before):
                frozen = [
                    (self._freeze(own, before[j], generator), w) for j, w in self.neighbours[i]
                ]
                for _ in range(p.n_local_steps):
                    own = tuple(part.detach().requires_grad_() for part in own)
                    loss = -log_density(*own, self.rows[i]).mean()
                    for neighbour, w in frozen:
                        loss = loss + self.alpha * w * self._discrepancy(own, neighbour)
                    gradient = torch.autograd.grad(loss, own)
                    moved = [x - p.learning_rate * g for x, g in zip(own, gradient, strict=False)]
                    own = project(*(x.detach() for x in moved))
                theta.append(own)
        return tuple(torch.stack(parts).numpy() for parts in zip(*theta, strict=False))

    def _freeze(self, own, neighbour, generator):
        if self.coupling == "euclidean":
            cost = sum(
                (a[:, None] - b[None]).square().reshape(len(a), len(b), -1).sum(-1)
                for a, b in zip(own, neighbour, strict=False)
            )
            order = linear_sum_assignment(cost.numpy())[1]
            return tuple(part[order] for part in neighbour)
        if self.coupling == "kl":
            points = draw(tuple(part[None] for part in neighbour), generator)[0]
            return points, log_density(*neighbour, points)
        return neighbour, inner(neighbour, neighbour)

    def _discrepancy(self, own, frozen):
        if self.coupling == "euclidean":
            return sum((a - b).square().sum() for a, b in zip(own, frozen, strict=False))
        if self.coupling == "kl":
            return (frozen[1] - log_density(*own, frozen[0])).mean()
        return inner(own, own) - 2 * inner(own, frozen[0]) + frozen[1]
