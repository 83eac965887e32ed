r"""One numbering of clusters for the whole network: number c means the same at every node.

Two components are alike by $s = \sqrt{w w'}\,(e^{-B} + \epsilon / (1 + B))$ with the Bhattacharyya
distance $B$, which no unit of a feature changes; the second term orders those that do not overlap.
A numbering is good if alike components of neighbours, and of a node and the whole network, have the
same number. It begins with everyone's mixture, or along a spanning tree of the most alike
neighbours, and is then improved node by node: each takes the numbers that agree best with those of
its neighbours and with the *profiles*, the Gaussians that have the moments of all components of one
number. Mixtures alone are looked at, never rows. The largest cluster is number 0.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from fedmixtures._ties import first_greatest, first_matching, in_order
from fedmixtures._types import Label
from fedmixtures.data.node_data import label_hash
from fedmixtures.engine.solution import Solution
from fedmixtures.graph.network import Network
from fedmixtures.methods.base import Levels
from fedmixtures.mixture.mixture import Mixture, distinct

APART = 0.01
"""What components that do not overlap are compared by."""
MOST_PAIRS = 300_000
"""Of components of neighbours that are compared; in larger networks profiles alone decide."""
MANY = 40
"""Edges for each node from which on the network's profiles stand for the neighbours."""
WHOLE_MATRICES = 2_000_000
"""Pairs up to which covariances are compared whole; beyond, variances of features alone."""
SWEEPS = 10
NODES_AT_ONCE = 20_000
"""That are compared with one mixture at a time, for memory."""


def aligned(solution: Solution, network: Network, like: Mixture | None = None) -> Solution:
    """Renumber clusters alike at all nodes; `like` (k, ...) are profiles whose numbers to keep."""
    if solution.joined is not None:
        return _joined_aligned(solution, network, like)
    theta, levels, share = solution.theta, solution.levels, solution.share
    if like is not None:
        theta = theta.padded(max(theta.n_components, like.n_components))
    everyone = None
    if levels is not None and "everyone" in levels.names:
        everyone = _largest(levels.theta.at(levels.names.index("everyone")), share)
        everyone = everyone.padded(theta.n_components)
    orders = numbering(theta, network, share, everyone)
    found = profiles(theta.relabel(orders), share)
    if like is not None:
        order = _matched(likeness(like.padded(theta.n_components), found)[None])[0]
    elif len(theta.weights) > 1:
        order = in_order(-np.asarray(found.weights), scale=1.0)
    else:
        return solution
    orders, found = orders[:, order], found.relabel(order)
    if levels is not None:
        levels = dataclasses.replace(levels, theta=_named_levels(levels, orders, found))
    return dataclasses.replace(solution, theta=theta.relabel(orders), levels=levels)


def _joined_aligned(solution: Solution, network: Network, like: Mixture | None) -> Solution:
    """Clusters that were joined once for each connected part of the network, in one numbering."""
    joined, share, theta = solution.joined, solution.share, solution.clusters
    assert joined is not None
    theta = theta.padded(max(theta.n_components, 0 if like is None else like.n_components))
    first, part = np.unique(network.parts(), return_index=True, return_inverse=True)[1:]
    part = part.reshape(-1)
    shares = np.bincount(part, share)
    means = [
        profiles(theta.at(part == i), share[part == i] / shares[i]) for i in range(len(shares))
    ]
    stacked = Mixture.stack(means)
    apart = Network.from_edges([], [network.labels[i] for i in first])
    orders = numbering(stacked, apart, shares)
    found = profiles(stacked.relabel(orders), shares)
    if like is not None:
        order = _matched(likeness(like.padded(theta.n_components), found)[None])[0]
    else:
        order = in_order(-np.asarray(found.weights), scale=1.0)
    number = np.argsort(orders[:, order], axis=1)[part]
    return dataclasses.replace(solution, joined=joined.relabel(number))


def nearest_clusters(solution: Solution, theta: Mixture) -> np.ndarray:
    """(nodes, k) the cluster of the network that every component of other mixtures is most like."""
    alike = likeness(theta, profiles(solution.clusters, solution.share))
    return np.asarray(first_greatest(alike))


def profiles(theta: Mixture, share: np.ndarray) -> Mixture:
    """One Gaussian (k, ...) for each number: the moments of all nodes' components of that number.

    Parameters
    ----------
    theta
        Mixtures of all nodes, stacked.
    share
        What each node counts for; sums to one.
    """
    mass = share[:, None] * theta.weights
    weights = mass.sum(0)
    part = mass / np.where(weights > 0, weights, 1.0)
    means = np.einsum("nk,nkd->kd", part, theta.means)
    g = theta.n_continuous
    off = (theta.means - means)[..., :g]
    covariances = np.einsum("nk,nkde->kde", part, theta.covariances)
    covariances = covariances + np.einsum("nk,nkd,nke->kde", part, off, off)
    covariances = np.where((weights > 0)[:, None, None], covariances, np.eye(g))
    return Mixture(weights, means, covariances)


def likeness(a: Mixture, b: Mixture, variances_alone: bool = False) -> np.ndarray:
    """(..., k, k) how alike the components of two mixtures, or of stacks of them, are."""
    distance = bhattacharyya(a, b, variances_alone)
    weight = np.sqrt(a.weights[..., :, None] * b.weights[..., None, :])
    return weight * (np.exp(-distance) + APART / (1 + distance))


def bhattacharyya(a: Mixture, b: Mixture, variances_alone: bool = False) -> np.ndarray:
    r"""(..., k, k) $\frac18 (\mu-\mu')^T S^{-1} (\mu-\mu') + \frac12 \ln(|S| / \sqrt{|A| |B|})$.

    $S = (A + B) / 2$; with `variances_alone` of the diagonals. For shares t of categories
    $\frac12 \sum_j (\sqrt{t_j} - \sqrt{t'_j})^2$ is added, which agrees to first order.
    """
    if a.is_mixed:
        roots = [np.sqrt(np.maximum(m.tables, 0.0)) for m in (a, b)]
        apart = np.square(roots[0][..., :, None, :] - roots[1][..., None, :, :]).sum(-1) / 2
        return apart + bhattacharyya(a.continuous, b.continuous, variances_alone)
    off = a.means[..., :, None, :] - b.means[..., None, :, :]
    if variances_alone:
        one, other = (np.diagonal(m.covariances, axis1=-2, axis2=-1) for m in (a, b))
        both = (one[..., :, None, :] + other[..., None, :, :]) / 2
        volume = np.log(one).sum(-1)[..., :, None] + np.log(other).sum(-1)[..., None, :]
        return (off**2 / both).sum(-1) / 8 + (np.log(both).sum(-1) - volume / 2) / 2
    both = (a.covariances[..., :, None, :, :] + b.covariances[..., None, :, :, :]) / 2
    volumes = [np.linalg.slogdet(m.covariances)[1] for m in (a, b)]
    volume = volumes[0][..., :, None] + volumes[1][..., None, :]
    square = (off * np.linalg.solve(both, off[..., None])[..., 0]).sum(-1)
    return square / 8 + (np.linalg.slogdet(both)[1] - volume / 2) / 2


def named_newcomer(solution: Solution, label: Label) -> Solution:
    """The solution with the clusters of one node numbered as those of all others are."""
    if solution.joined is not None:  # it has the clusters of the network, not its own
        return solution
    place = solution.labels.index(label)
    others = np.delete(np.arange(len(solution.labels)), place)
    share = solution.share[others]
    found = profiles(solution.theta.at(others), share / share.sum())
    orders = np.tile(np.arange(found.n_components), (len(solution.labels), 1))
    (orders[place],) = _matched(likeness(found, solution.theta.at(place))[None])
    return dataclasses.replace(solution, theta=solution.theta.relabel(orders))


def _named_levels(levels: Levels, orders: np.ndarray, found: Mixture) -> Mixture:
    """All levels in the order of the profiles; the one that clusters are read from, in theirs."""
    theta = levels.theta.padded(found.n_components)
    everyone = theta.at(levels.names.index("everyone")) if "everyone" in levels.names else None
    new = []
    for number, name in enumerate(levels.names):
        level = theta.at(number)
        if name == "personal" and everyone is not None:  # its components are everyone's
            order = _alike_most(found, everyone)
        else:
            order = _alike_most(found, level)
            if name != "everyone":
                here = levels.clusters == number
                order[here] = orders[here]
        new.append(level.relabel(order))
    return Mixture.stack(new)


def numbering(
    theta: Mixture, network: Network, share: np.ndarray, everyone: Mixture | None = None
) -> np.ndarray:
    """(nodes, k) for every node the component that gets each number.

    Parameters
    ----------
    theta
        Mixtures of all nodes of `network`, stacked.
    network
        Who neighbours whom.
    share
        (nodes,) what each node counts for.
    everyone
        A mixture of the whole network, if there is one: where the numbering begins.
    """
    n, k = theta.weights.shape
    sequence = in_sequence(network.labels)
    whole = network.n_edges * k * k <= MOST_PAIRS and network.n_edges <= MANY * n
    if everyone is not None:
        orders = _alike_most(everyone, theta)
    elif whole and network.n_edges:
        orders = _along_tree(theta, network, share, sequence)
    else:
        orders = _alike_most(theta.at(sequence[first_greatest(share[sequence])]), theta)
    if not whole:
        for _ in range(SWEEPS):
            before, orders = orders, _alike_most(profiles(theta.relabel(orders), share), theta)
            if (orders == before).all():
                break
        return orders
    ends = np.concatenate([network.source, network.target])
    starts = np.concatenate([network.target, network.source])
    alike = likeness(theta.at(starts), theta.at(ends))
    by_end = np.argsort(ends, kind="stable")
    bounds = np.searchsorted(ends[by_end], np.arange(n + 1))
    for _ in range(SWEEPS):
        before = orders.copy()
        to_profiles = likeness(profiles(theta.relabel(orders), share), theta)
        for node in sequence:
            edges = by_end[bounds[node] : bounds[node + 1]]
            numbered = orders[starts[edges]][..., None]
            agree = np.take_along_axis(alike[edges], numbered, axis=1).sum(0)
            orders[node] = first_matching(-(agree + to_profiles[node]))
        if (orders == before).all():
            break
    return orders


def in_sequence(labels: tuple[Label, ...]) -> np.ndarray:
    """Nodes in an order that depends on their labels alone."""
    return np.argsort(np.array([label_hash(label) for label in labels], np.uint64), kind="stable")


def _largest(theta: Mixture, share: np.ndarray) -> Mixture:
    """The mixture that most rows have in common."""
    mixtures, shares = distinct(theta, share)
    return mixtures.at(int(first_greatest(shares)))


def _along_tree(
    theta: Mixture, network: Network, share: np.ndarray, sequence: np.ndarray
) -> np.ndarray:
    """Orders along a spanning tree of the most alike neighbours, from a root in each part."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import breadth_first_order, minimum_spanning_tree

    n, k = theta.weights.shape
    alike = likeness(theta.at(network.source), theta.at(network.target))
    partner = _matched(alike)
    total = np.take_along_axis(alike, partner[..., None], -1)[..., 0].sum(-1)
    rank = np.argsort(in_order(-total, scale=1.0)) + 1.0  # no two edges cost the same
    tree = minimum_spanning_tree(csr_array((rank, (network.source, network.target)), (n, n)))
    orders = np.full((n, k), -1)
    first = None
    for root in sequence[in_order(-share[sequence])]:
        if orders[root, 0] >= 0:
            continue
        if first is None:
            first, orders[root] = root, np.arange(k)
        else:
            named = theta.at(first).relabel(orders[first])
            (orders[root],) = _matched(likeness(named, theta.at(root))[None])
        visited, parents = breadth_first_order(tree, root, directed=False)
        for node in visited[1:].tolist():
            named = theta.at(parents[node]).relabel(orders[parents[node]])
            (orders[node],) = _matched(likeness(named, theta.at(node))[None])
    return orders


def _alike_most(reference: Mixture, theta: Mixture) -> np.ndarray:
    """(nodes, k) the component of every node that is paired with each of the reference.

    The reference is one mixture, or a stack of one for each node.
    """
    n, k = theta.weights.shape
    one = reference.weights.ndim == 1
    orders = np.empty((n, k), dtype=np.int64)
    for first in range(0, n, NODES_AT_ONCE):
        here = slice(first, first + NODES_AT_ONCE)
        to = reference if one else reference.at(here)
        orders[here] = _matched(likeness(to, theta.at(here), n * k * k > WHOLE_MATRICES))
    return orders


def _matched(alike: np.ndarray) -> np.ndarray:
    """(n, k) the columns of (n, k, k) that are paired with each row, most alike in total."""
    best = np.asarray(first_greatest(alike))
    unclear = (np.sort(best, -1) != np.arange(best.shape[-1])).any(-1)
    unclear |= (alike.max(-1) <= 0).any(-1)  # absent components
    for i in np.flatnonzero(unclear):
        best[i] = first_matching(-alike[i])
    return best
