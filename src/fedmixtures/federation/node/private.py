r"""Differentially private node steps: every row's gradient is clipped, the sum gets noise.

A node's rows enter its model through the gradient of its local loss alone. Each row's gradient (all
parameters as one vector) is shortened to norm C and divided by the number of rows of its person
(one where no person is named); the sum over m people, divided by m, gets Gaussian noise of standard
deviation $z \cdot 2C/m$, where $2C/m$ is how far replacing one person can move it. All that
follows, the coupling, the projection, the model that is shared, is post-processing.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

from fedmixtures import _checks
from fedmixtures.methods.gtvmin import GTVMin
from fedmixtures.methods.programs import Inbox, Info, Keys, NodeRows
from fedmixtures.mixture.density import local_loss
from fedmixtures.mixture.mixture import Mixture


class PrivateGTVMin(GTVMin):
    """Algorithm 1 with clipped and noised local gradients; a round's keys must be secret."""

    clip: float = 1.0
    """C: the longest gradient of one row."""
    noise: float = 1.0
    """z: noise in units of the sensitivity 2C/m."""

    @classmethod
    def of(cls, method: GTVMin, clip: float, noise: float) -> PrivateGTVMin:
        """The private form of a method."""
        _checks.positive("clip", clip)
        _checks.positive("noise", noise)
        given = {f.name: getattr(method, f.name) for f in dataclasses.fields(GTVMin)}
        return cls(**given, clip=clip, noise=noise)

    def step(
        self, state: Mixture, inbox: Inbox, data: NodeRows, keys: Keys
    ) -> tuple[Mixture, Info]:
        """Lines 3 to 6 with the private gradient in place of the local one."""
        coupling = self.discrepancy.couple(state, inbox.broadcast, keys.slot, inbox.weight)
        drawn = jax.vmap(lambda key: jr.split(key, self.n_local_steps))(keys.node)

        def local_step(theta: Mixture, step_keys):
            fit_gradient = self.noisy_gradient(theta, data, step_keys)
            pull, pull_gradient = coupling.pull(theta)
            gradient = jax.tree.map(lambda a, b: a + self.alpha * b, fit_gradient, pull_gradient)
            moved = jax.tree.map(lambda x, g: x - self.learning_rate * g, theta, gradient)
            return self._feasible.project(moved, present=theta.weights > 0), pull

        theta, pull = jax.lax.scan(local_step, state, jnp.moveaxis(drawn, 1, 0))
        nothing = jnp.zeros_like(pull[0])  # the loss itself would be one more look at the rows
        return theta, self._info(state, theta, nothing, pull[0])

    def noisy_gradient(self, theta: Mixture, data: NodeRows, keys) -> Mixture:
        """Mean of the clipped gradients of a block's rows, with noise."""
        total = data.total_weight
        shares = data.row_weights * total[..., None]  # each person's rows share a weight of one
        return jax.vmap(self._one_node)(theta, data.rows, shares, total, keys)

    def _one_node(self, theta: Mixture, rows, shares, m, key) -> Mixture:

        def clipped_sum(total: Mixture, row_and_share):
            row, share = row_and_share
            gradient = jax.grad(lambda p: local_loss(p, row[None], jnp.ones(1, row.dtype)))(theta)
            gradient = jax.tree.map(
                lambda g: jnp.where(jnp.isfinite(g), g, jnp.zeros_like(g)), gradient
            )
            norm = jnp.sqrt(sum(jnp.square(part).sum() for part in gradient.parts))
            factor = share * jnp.minimum(1.0, self.clip / jnp.where(norm > 0, norm, 1.0))
            return jax.tree.map(lambda t, g: t + factor * g, total, gradient), None

        zero = jax.tree.map(jnp.zeros_like, theta)
        total, _ = jax.lax.scan(clipped_sum, zero, (rows, shares))
        deviation = self.noise * 2 * self.clip
        keys = jr.split(key, 3)
        noisy = [
            part + deviation * jr.normal(k, part.shape, part.dtype)
            for part, k in zip(total.parts, keys, strict=True)
        ]
        present = theta.weights > 0
        parts = [part / m for part in noisy]
        parts[2] = 0.5 * (parts[2] + jnp.swapaxes(parts[2], -1, -2))
        return Mixture(
            jnp.where(present, parts[0], 0.0),
            jnp.where(present[:, None], parts[1], 0.0),
            jnp.where(present[:, None, None], parts[2], 0.0),
        )


def public_start(k: int, d: int, seed: int) -> Mixture:
    """A start without a look at any row, the same at every site: for features of order one."""
    means = np.random.default_rng(seed).standard_normal((k, d))
    return Mixture(np.full(k, 1 / k), means, np.broadcast_to(np.eye(d), (k, d, d)).copy())
