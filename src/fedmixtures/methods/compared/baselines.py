r"""Ordinary mixture fits: of each node's rows, of all rows in one place, and what begins with them.

EM from k-means starts, by scikit-learn or many at once by JAX. The two engines make the same starts
from the same seed and run the same iteration, so that they agree up to rounding; of equally good
starts both keep the first. From 200 fits on JAX also makes the starts, with draws of its own.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

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
    distinct_rows,
    mixtures_of_many,
    node_seed,
)
from fedmixtures.kernels.block_em import BlockFit, expectation_maximisation
from fedmixtures.kernels.compiling import jit_in_order, rounded_up
from fedmixtures.methods.base import OneShot, Outcome
from fedmixtures.methods.compared.pooling import EMMethod
from fedmixtures.methods.conversation import Block, Conversation
from fedmixtures.mixture.arithmetic import double
from fedmixtures.mixture.covariance_types import TYPES, of_type
from fedmixtures.mixture.mixture import Mixture

POOL, HUB = "all nodes together", "the hub"
BATCH_CELLS = 20_000_000  # rows times components of all fits in one device call, at most
MANY_ROWS = 50_000  # a fit of this many rows gains from threads


@dataclass(frozen=True)
class OneFit:
    """One mixture to fit."""

    label: Label
    rows: np.ndarray
    counts: np.ndarray  # weight of each row
    n_components: int
    seed: int
    start: Mixture | None = None  # begin here, instead of k-means


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
        alone knows fractional sample weights and a prior, and is taken where cells are missing.
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
        start = lambda i: None if theta is None else theta.at(i).trimmed()
        return self.fit_all(
            [
                OneFit(label, *data.of(i), n_components[i], node_seed(seed, label), start(i))
                for i, label in enumerate(data.labels)
            ]
        )

    def fit_all(self, tasks: Sequence[OneFit]) -> Fits:
        """Fit every task on its own."""
        tasks = [in_order(task) for task in tasks]
        whole = filled(together(tasks))
        counts = {task.label: len(distinct_rows(task.rows, task.counts)[0]) for task in tasks}
        _checks.enough_rows(counts, {task.label: task.n_components for task in tasks})
        by_jax = self.engine == "jax" or any(np.isnan(task.rows).any() for task in tasks)
        # Threads cost more than they bring on rows this few, much more on a busy machine.
        few = max(len(task.rows) for task in tasks) < MANY_ROWS
        with threadpool_limits(1) if few else nullcontext():
            return self._by_jax(tasks, whole) if by_jax else self._by_sklearn(tasks)

    def _by_sklearn(self, tasks: list[OneFit]) -> Fits:
        from sklearn.exceptions import ConvergenceWarning

        fits = Fits([], [])
        for task in tasks:
            rows = repeated(task)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)  # told once for all nodes
                starts = self._starts(task, task.rows)
                tried = [self._sklearn_model(task, start).fit(rows) for start in starts]
            bounds = np.array([model.lower_bound_ for model in tried])
            model = tried[first_greatest(bounds, scale=1.0)]
            k, d = model.means_.shape
            covariances = TYPES[self.covariance_type].expanded(model.covariances_, k, d)
            fits.mixtures.append(Mixture(model.weights_, model.means_, covariances))
            if not model.converged_:
                fits.unsettled.append(task.label)
        return fits

    def _sklearn_model(self, task: OneFit, start: Mixture):
        from sklearn.mixture import GaussianMixture

        weights, means, covariances = start.to_numpy().parts
        # By way of factors they stay symmetric, however thin a component is.
        factors = np.linalg.inv(np.linalg.cholesky(covariances))
        precisions = np.swapaxes(factors, -1, -2) @ factors
        return GaussianMixture(
            task.n_components,
            covariance_type=self.covariance_type,
            reg_covar=self.reg_covar,
            tol=self.tol,
            max_iter=self.max_iter,
            random_state=task.seed,
            weights_init=weights / weights.sum(),
            means_init=means,
            precisions_init=TYPES[self.covariance_type].compact(precisions),
        )

    def _by_jax(self, tasks: list[OneFit], whole: NodeData) -> Fits:
        """`whole`: the rows of all tasks without gaps, for starts."""
        mixtures: list[Mixture | None] = [None] * len(tasks)
        unsettled = []
        for batch in batches_of(tasks, self.n_init):
            here = [tasks[i] for i in batch]
            rows = [whole.of(i)[0] for i in batch]
            starts = self._starts_of(here, rows, many=len(tasks) >= BATCHED_FROM)
            fitted = self._run(here, starts)
            first = 0
            for i, own in zip(batch, starts, strict=True):
                span = slice(first, first + len(own))
                scale = tasks[i].counts.sum()
                best = first + int(first_greatest(fitted.log_likelihood[span], scale=scale))
                mixtures[i] = fitted.theta.at(best).trimmed()
                if fitted.n_steps[best] >= self.max_iter:
                    unsettled.append(i)
                first += len(own)
        labels = [tasks[i].label for i in sorted(unsettled)]
        return Fits([mixture for mixture in mixtures if mixture is not None], labels)

    def _starts_of(
        self, tasks: list[OneFit], whole: list[np.ndarray], many: bool
    ) -> list[list[Mixture]]:
        """The starts of every task; k-means of many tasks runs in JAX, with draws of its own."""
        if not many or any(task.start is not None for task in tasks):
            return [self._starts(task, rows) for task, rows in zip(tasks, whole, strict=True)]
        data = replace(together(tasks), rows=np.concatenate(whole))
        ks = [task.n_components for task in tasks]
        seeds = np.array([task.seed for task in tasks], dtype=np.uint32)
        found = mixtures_of_many(data, ks, seeds, self.n_init, self.reg_covar, keep_all=True)
        found = of_type(found, self.covariance_type)
        each = [found.at(i).trimmed() for i in range(len(found.weights))]
        return [each[i * self.n_init : (i + 1) * self.n_init] for i in range(len(tasks))]

    def _starts(self, task: OneFit, rows: np.ndarray) -> list[Mixture]:
        """The starts scikit-learn would make: one random stream through all of them."""
        if task.start is not None:
            return [task.start]
        k = task.n_components
        found = clusterings(rows, task.counts, k, self.n_init, task.seed)
        clustered = lambda labels: clustered_mixture(rows, task.counts, labels, k, self.reg_covar)
        return [of_type(clustered(one.labels_), self.covariance_type) for one in found]

    def _run(self, tasks: list[OneFit], starts: list[list[Mixture]]) -> BlockFit:
        """EM from all starts of all tasks of a batch."""
        owner = np.repeat(np.arange(len(tasks)), [len(own) for own in starts])
        data = by_pattern(together(tasks))
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


def together(tasks: Sequence[OneFit]) -> NodeData:
    """The rows of all tasks, each as a node."""
    sizes = [len(task.rows) for task in tasks]
    return NodeData(
        labels=tuple(task.label for task in tasks),
        rows=np.concatenate([task.rows for task in tasks]),
        row_weights=np.concatenate([task.counts for task in tasks]),
        offsets=np.concatenate([[0], np.cumsum(sizes)]),
        source_index=np.arange(sum(sizes)),
    )


def batches_of(tasks: list[OneFit], n_init: int) -> list[list[int]]:
    """Tasks of alike size together, so that little is padded; a bounded number at a time."""
    by_size: dict[int, list[int]] = {}
    for i, task in enumerate(tasks):
        by_size.setdefault(max(len(task.rows) - 1, 1).bit_length(), []).append(i)
    batches = []
    for bits, members in sorted(by_size.items()):
        k = max(tasks[i].n_components for i in members)
        width = max(1, BATCH_CELLS // (n_init * k << bits))
        batches += [members[i : i + width] for i in range(0, len(members), width)]
    return batches


def in_order(task: OneFit) -> OneFit:
    """Rows in their own order, whatever order they came in: k-means draws by position."""
    order = np.lexsort(task.rows.T[::-1])
    return replace(task, rows=task.rows[order], counts=task.counts[order])


def repeated(task: OneFit) -> np.ndarray:
    """Rows as often as they count."""
    times = np.rint(task.counts).astype(int)
    if not np.allclose(task.counts, times):
        raise ValueError(
            f"`sample_weight` has fractions at {_checks.plain(task.label)!r}, which scikit-learn's "
            "mixture cannot count. Use engine='jax'."
        )
    return np.repeat(task.rows, times, axis=0)


class Local(EMFits):
    """An ordinary Gaussian mixture at every node (scikit-learn's, as in the paper).

    With few rows per component near-singular components are normal, and so is a likelihood far
    below that of the training rows. That is what cooperation mends; a larger `reg_covar` hides it.
    """

    recipients: ClassVar = "nobody"

    def fit(
        self, data: NodeData, n_components: Sequence[int], theta: Mixture | None, seed: int
    ) -> Outcome:
        """One fit per node, seeded by its label."""
        fits = self.fit_nodes(data, n_components, theta, seed)
        return Outcome(Mixture.stack(fits.mixtures), fits.message(self.max_iter))

    def mixtures(
        self, data: NodeData, n_components: Sequence[int], seed: int, default_ridge: float
    ) -> Mixture:
        """The fits as where another method starts, in place of `KMeansStart`; own ridge."""
        return self.fit(data, n_components, None, seed).theta


class Centralized(EMFits):
    """An ordinary Gaussian mixture of all nodes' rows (scikit-learn's, as in the paper).

    The upper bound where nodes share one distribution; where they do not, it blends them. Every
    row leaves its node.
    """

    moves_rows: ClassVar[bool] = True
    needs_equal_components: ClassVar[bool] = True

    def fit(
        self, data: NodeData, n_components: Sequence[int], theta: Mixture | None, seed: int
    ) -> Outcome:
        """One fit of the pooled rows; a given start is that of the first node."""
        start = None if theta is None else theta.at(0).trimmed()
        fits = self.fit_all(
            [OneFit(POOL, data.rows, data.row_weights, n_components[0], seed, start)]
        )
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
        task = OneFit(HUB, rows, np.ones(len(rows)), max(n_components), node_seed(seed, HUB))
        pooled = self.fit_all([task])
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


class FromLocalFits(EMMethod, Conversation):
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

    def local_fits(self, block: Block) -> Mixture:
        """The nodes' own fits, stacked, NumPy."""
        same = {"reg_covar": self.reg_covar, "prior": self.prior}
        local = Local(self.n_init, engine="jax", covariance_type=self.covariance_type, **same)
        fits = local.fit_nodes(block.data, block.n_components.tolist(), block.start, block.seed)
        return Mixture.stack(fits.mixtures)
