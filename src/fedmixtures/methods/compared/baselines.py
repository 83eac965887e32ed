r"""Ordinary mixture fits: of each node's rows, of all rows in one place, and what begins with them.

EM from k-means starts, by scikit-learn or many at once by JAX. The two engines make the same starts
from the same seed and run the same iteration, so that they agree up to rounding; of equally good
starts both keep the first. From 200 fits on JAX also makes the starts, with draws of its own.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
from threadpoolctl import threadpool_limits

from fedmixtures import _checks
from fedmixtures._ties import first_greatest
from fedmixtures._types import Label
from fedmixtures.data.node_data import NodeData, by_pattern, filled, label_hash, padded
from fedmixtures.init import (
    BATCHED_FROM,
    clustered_mixture,
    clusterings,
    distinct_rows_of_all,
    mixtures_of_many,
    node_seed,
)
from fedmixtures.kernels.block_em import BlockFit, expectation_maximisation
from fedmixtures.kernels.compiling import jit_in_order, rounded_up
from fedmixtures.methods.base import OneShot, Outcome
from fedmixtures.methods.compared.pooling import EMMethod
from fedmixtures.methods.protocol import Block, Protocol, Stage
from fedmixtures.mixture.arithmetic import double
from fedmixtures.mixture.covariance_types import TYPES, of_type
from fedmixtures.mixture.m_step import ShapePrior
from fedmixtures.mixture.mixture import Mixture

WITH_PRIOR: dict[str, Any] = {
    "engine": "jax",
    "prior": ShapePrior(),
    "reg_covar": 1e-3,
    "n_init": 10,
}
"""Settings of an ordinary fit with a shape prior, as a trusting node makes it of its own rows."""
POOL, HUB = "all nodes together", "the hub"
Begin = Callable[[list[int]], list[list[Mixture]]]
BATCH_CELLS = 20_000_000  # rows times components of all fits in one device call, at most


@dataclass(frozen=True)
class Fits:
    """Mixtures, and where EM was stopped before it had settled."""

    mixtures: list[Mixture]
    unsettled: list[Label]

    def message(self, max_iter: int) -> str:
        """A line for the user; empty if all is well."""
        if not self.unsettled:
            return ""
        return (
            f"EM had not settled after max_iter={max_iter} steps at "
            f"{_checks.listed(self.unsettled)}. Raise max_iter or tol if that matters."
        )


class EMFits(EMMethod, OneShot):
    """Settings of ordinary mixture fits; the defaults are scikit-learn's, with five starts.

    Parameters
    ----------
    n_init
        k-means starts per fit; the most likely result is kept.
    tol, max_iter
        EM stops when the mean log-likelihood changes by less than `tol`, or after `max_iter` steps.
    engine
        ``"sklearn"`` is the paper's. ``"jax"`` runs the fits of all nodes and starts together; it
        alone knows fractional sample weights and a prior, and is taken where cells are missing or
        there are categories.
    reg_covar, prior
        Ridge on every covariance; common shape that covariances are shrunk to, or None.
    """

    n_init: int = 5
    tol: float = 1e-3
    max_iter: int = 100
    engine: Literal["sklearn", "jax"] = "sklearn"

    def __check_init__(self):
        _checks.whole("n_init", self.n_init)
        _checks.whole("max_iter", self.max_iter)
        _checks.positive("tol", self.tol, allow_zero=True)
        _checks.one_of("engine", self.engine, ("sklearn", "jax"))
        if self.prior is not None and self.engine != "jax":
            raise ValueError(
                "`prior` is given, but scikit-learn's mixture knows none. Use engine='jax'."
            )

    def fit_nodes(
        self, data: NodeData, n_components: Sequence[int], theta: Mixture | None, seed: int
    ) -> Fits:
        """One fit per node, seeded by its label; from `theta` if given."""
        seeds = [node_seed(seed, label) for label in data.labels]
        starts = None if theta is None else [theta.at(i).trimmed() for i in range(data.n_nodes)]
        return self.fit_all(data, n_components, seeds, starts)

    def fit_all(
        self,
        data: NodeData,
        ks: Sequence[int],
        seeds: Sequence[int],
        starts: Sequence[Mixture] | None = None,
    ) -> Fits:
        """Fit every node on its own, with so many components, from its start or from k-means."""
        data = data.in_order()  # k-means draws by position
        whole = filled(data)
        counts = dict(zip(data.labels, distinct_rows_of_all(data).counts.tolist(), strict=True))
        _checks.enough_rows(counts, dict(zip(data.labels, ks, strict=True)))
        by_jax = self.engine == "jax" or data.has_gaps or bool(data.categories)
        many = by_jax and data.n_nodes >= BATCHED_FROM

        def begin(nodes: list[int]) -> list[list[Mixture]]:
            """The starts of these nodes."""
            if starts is not None:
                return [[starts[i]] for i in nodes]
            if many:
                which = [ks[i] for i in nodes], [seeds[i] for i in nodes]
                return self._many_starts(whole.at(nodes), *which)
            return [self._starts(whole, i, ks[i], seeds[i]) for i in nodes]

        # Threads cost more than they bring on tables this narrow, much more on a busy machine.
        with threadpool_limits(1, user_api="blas"):
            if by_jax:
                return self._by_jax(data, ks, begin)
            return self._by_sklearn(data, seeds, begin)

    def _by_sklearn(self, data: NodeData, seeds: Sequence[int], begin: Begin) -> Fits:
        from sklearn.exceptions import ConvergenceWarning

        fits = Fits([], [])
        for i, label in enumerate(data.labels):
            rows = repeated(label, *data.of(i))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)  # told once for all nodes
                tried = [self._sklearn_model(start, seeds[i]).fit(rows) for start in begin([i])[0]]
            bounds = np.array([model.lower_bound_ for model in tried])
            model = tried[first_greatest(bounds, scale=1.0)]
            k, d = model.means_.shape
            covariances = TYPES[self.covariance_type].expanded(model.covariances_, k, d)
            fits.mixtures.append(Mixture(model.weights_, model.means_, covariances))
            if not model.converged_:
                fits.unsettled.append(label)
        return fits

    def _sklearn_model(self, start: Mixture, seed: int):
        from sklearn.mixture import GaussianMixture

        weights, means, covariances = start.to_numpy().parts
        # By way of factors they stay symmetric, however thin a component is.
        factors = np.linalg.inv(np.linalg.cholesky(covariances))
        precisions = np.swapaxes(factors, -1, -2) @ factors
        return GaussianMixture(
            start.n_components,
            covariance_type=self.covariance_type,
            reg_covar=self.reg_covar,
            tol=self.tol,
            max_iter=self.max_iter,
            random_state=seed,
            weights_init=weights / weights.sum(),
            means_init=means,
            precisions_init=TYPES[self.covariance_type].compact(precisions),
        )

    def _by_jax(self, data: NodeData, ks: Sequence[int], begin: Begin) -> Fits:
        mixtures: dict[int, Mixture] = {}
        unsettled = []
        for batch in batches_of(data.counts, ks, self.n_init):
            starts = begin(batch)
            fitted = self._run(data.at(batch), starts)
            first = 0
            for i, own in zip(batch, starts, strict=True):
                span = slice(first, first + len(own))
                scale = data.of(i)[1].sum()
                best = first + int(first_greatest(fitted.log_likelihood[span], scale=scale))
                mixtures[i] = fitted.theta.at(best).trimmed()
                if fitted.n_steps[best] >= self.max_iter:
                    unsettled.append(i)
                first += len(own)
        labels = [data.labels[i] for i in sorted(unsettled)]
        return Fits([mixtures[i] for i in range(data.n_nodes)], labels)

    def _many_starts(self, whole: NodeData, ks: list[int], seeds: list[int]) -> list[list[Mixture]]:
        """The starts of many nodes, by k-means in JAX, with draws of its own."""
        drawn = np.array(seeds, dtype=np.uint32)
        found = mixtures_of_many(whole, ks, drawn, self.n_init, self.reg_covar, keep_all=True)
        found = of_type(found.with_categories(whole.n_continuous), self.covariance_type)
        each = [found.at(i).trimmed() for i in range(len(found.weights))]
        return [each[i * self.n_init : (i + 1) * self.n_init] for i in range(len(ks))]

    def _starts(self, data: NodeData, place: int, k: int, seed: int) -> list[Mixture]:
        """The starts scikit-learn would make: one random stream through all of them."""
        rows, counts = data.of(place)
        found = clusterings(rows, counts, k, self.n_init, seed)
        clustered = lambda labels: clustered_mixture(rows, counts, labels, k, self.reg_covar)
        starts = [clustered(one.labels).with_categories(data.n_continuous) for one in found]
        return [of_type(start, self.covariance_type) for start in starts]

    def _run(self, data: NodeData, starts: list[list[Mixture]]) -> BlockFit:
        """EM from all starts of all nodes of a batch."""
        owner = np.repeat(np.arange(data.n_nodes), [len(own) for own in starts])
        data = by_pattern(data)
        rows, counts = padded(data, rounded_up(data.counts.max()))
        theta = Mixture.stack([start for own in starts for start in own])
        with double():
            numbers = jnp.asarray([self.tol, self.reg_covar])
            how = self.max_iter, self.prior, self.covariance_type
            fitted = _run_batch(theta, rows, counts, owner, numbers, *how)
            return jax.tree.map(np.asarray, fitted)


@jit_in_order
def _run_batch(theta, rows, counts, owner, numbers, max_iter: int, prior, kind: str) -> BlockFit:
    theta, rows, counts = jax.tree.map(jnp.asarray, (theta, rows, counts))
    how = max_iter, numbers[0], numbers[1], prior, kind
    return expectation_maximisation(theta, rows[owner], counts[owner], *how)


def batches_of(counts: np.ndarray, ks: Sequence[int], n_init: int) -> list[list[int]]:
    """Nodes of alike size together, so that little is padded; a bounded number at a time."""
    by_size: dict[int, list[int]] = {}
    for i, count in enumerate(counts.tolist()):
        by_size.setdefault(max(count - 1, 1).bit_length(), []).append(i)
    batches = []
    for bits, members in sorted(by_size.items()):
        k = max(ks[i] for i in members)
        width = max(1, BATCH_CELLS // (n_init * k << bits))
        batches += [members[i : i + width] for i in range(0, len(members), width)]
    return batches


def repeated(label: Label, rows: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Rows as often as they count."""
    times = np.rint(counts).astype(int)
    if not np.allclose(counts, times):
        raise ValueError(
            f"`sample_weight` has fractions at {_checks.plain(label)!r}, which scikit-learn's "
            "mixture cannot count. Use engine='jax'."
        )
    return np.repeat(rows, times, axis=0)


class Local(EMFits):
    """An ordinary Gaussian mixture at every node (scikit-learn's, as in the paper).

    With few rows per component near-singular components are normal, and so is a likelihood far
    below that of the training rows. That is what cooperation mends; a larger `reg_covar` hides it.
    """

    recipients: ClassVar = "nobody"
    supports_categories: ClassVar[bool] = True

    def fit(
        self, data: NodeData, n_components: Sequence[int], theta: Mixture | None, seed: int
    ) -> Outcome:
        """One fit per node, seeded by its label."""
        fits = self.fit_nodes(data, n_components, theta, seed)
        return Outcome(Mixture.stack(fits.mixtures), fits.message(self.max_iter))

    def mixtures(
        self, data: NodeData, n_components: Sequence[int], seed: int, default_reg_covar: float
    ) -> Mixture:
        """The fits as where another method starts, in place of `KMeansStart`; own `reg_covar`."""
        return self.fit(data, n_components, None, seed).theta


class Centralized(EMFits):
    """An ordinary Gaussian mixture of all nodes' rows (scikit-learn's, as in the paper).

    The upper bound where nodes share one distribution; where they do not, it blends them. Every
    row leaves its node.
    """

    moves_rows: ClassVar[bool] = True
    needs_equal_components: ClassVar[bool] = True
    supports_categories: ClassVar[bool] = True

    def fit(
        self, data: NodeData, n_components: Sequence[int], theta: Mixture | None, seed: int
    ) -> Outcome:
        """One fit of the pooled rows; a given start is that of the first node."""
        starts = None if theta is None else [theta.at(0).trimmed()]
        pool = replace(data, labels=(POOL,), offsets=np.array([0, len(data.rows)]))
        fits = self.fit_all(pool, n_components[:1], [seed], starts)
        weighted = not (data.row_weights == 1).all()
        sent = data.counts * (data.n_features + weighted)
        return to_all(fits.mixtures[0], fits.message(self.max_iter), sent)


def to_all(model: Mixture, message: str, sent: np.ndarray) -> Outcome:
    """One mixture that a hub sends to all nodes, who have sent so many numbers each."""
    theta = Mixture.stack([model] * len(sent))
    return Outcome(theta, message, sent=sent, received=np.full(len(sent), n_numbers(model)))


def n_numbers(mixture: Mixture) -> int:
    """Numbers in a message that is a mixture."""
    return sum(part.size for part in mixture.parts)


class FedGenGMM(EMFits):
    r"""One exchange: local fits up, one mixture of synthetic rows down.

    Pettersson, Liang and Andresen (2025): the hub forms the union
    $\sum_i \frac{m_i}{\sum_j m_j} p_i$ of the local mixtures, draws H rows per local component from
    it, fits one mixture to these rows by EM and sends it to all nodes. Nodes may have different
    numbers of components; the hub's mixture has as many as the largest. All settings of the fits
    hold for nodes and hub alike.

    Parameters
    ----------
    samples_per_component
        H: rows the hub draws per component of the union. (No code of the authors is public.)
    """

    samples_per_component: int = 100

    def __check_init__(self):
        _checks.whole("samples_per_component", self.samples_per_component)

    def fit(
        self, data: NodeData, n_components: Sequence[int], theta: Mixture | None, seed: int
    ) -> Outcome:
        """Local fits, synthetic rows, one fit of them."""
        local = self.fit_nodes(data, n_components, theta, seed)
        rows = self.synthetic_rows(local.mixtures, data, seed)
        hub = replace(NodeData.from_rows(rows), labels=(HUB,))
        pooled = self.fit_all(hub, [max(n_components)], [node_seed(seed, HUB)])
        sent = np.array([n_numbers(mixture) + 1 for mixture in local.mixtures])
        message = local.message(self.max_iter) or pooled.message(self.max_iter)
        return to_all(pooled.mixtures[0], message, sent)

    def synthetic_rows(self, mixtures: Sequence[Mixture], data: NodeData, seed: int) -> np.ndarray:
        """Rows drawn from the union of the local mixtures, H per component."""
        order = np.argsort([label_hash(label) for label in data.labels], kind="stable")
        rows = data.total_weights()
        weights = np.concatenate([rows[i] * mixtures[i].weights for i in order])
        means = np.concatenate([mixtures[i].means for i in order])
        factors = np.linalg.cholesky(np.concatenate([mixtures[i].covariances for i in order]))
        rng = np.random.default_rng(seed)
        n = self.samples_per_component * len(weights)
        component = rng.choice(len(weights), size=n, p=weights / weights.sum())
        noise = rng.standard_normal((n, data.n_features))
        return means[component] + np.einsum("nij,nj->ni", factors[component], noise)


class FromLocalFits(EMMethod, Protocol):
    """Settings of the local fits, which run in JAX so that a prior and row weights are known.

    Parameters
    ----------
    n_init
        k-means starts of a local fit; the most likely result is kept.
    reg_covar, prior
        Ridge on every covariance; common shape that covariances are shrunk to, or None.
    """

    needs_equal_components: ClassVar[bool] = True

    n_init: int = 5

    def __check_init__(self):
        _checks.whole("n_init", self.n_init)

    def local(self, block: Block) -> Stage:
        """The nodes' own fits, stacked, NumPy."""
        return Stage("local", lambda: self._local_fits(block), lambda theta: theta)

    def _local_fits(self, block: Block) -> Mixture:
        same = {"reg_covar": self.reg_covar, "prior": self.prior}
        local = Local(self.n_init, engine="jax", covariance_type=self.covariance_type, **same)
        fits = local.fit_nodes(block.data, block.n_components.tolist(), block.start, block.seed)
        return Mixture.stack(fits.mixtures)
