import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.cluster import KMeans

from em_oracle import matched
from fedmixtures import FedKMeans, KMeansStart, NetworkGaussianMixture
from fedmixtures.data import homogeneous
from fedmixtures.data.node_data import NodeData
from fedmixtures.graph.network import complete
from fedmixtures.methods.base import Participants
from fedmixtures.methods.compared.fedkmeans import lloyd
from fedmixtures.methods.programs import NodeRows
from fedmixtures.mixture.arithmetic import double
from reproduction.tasks.measure import centroid_error


def fit(case, method, **options):
    settings = {"graph": case.network, "n_rounds": 4, "random_state": 7} | options
    return NetworkGaussianMixture(3, method=method, **settings).fit(case.X, nodes=case.nodes)


def plain_lloyd(centres, rows):
    nearest = np.linalg.norm(rows[:, None] - centres[None], axis=-1).argmin(1)
    return np.stack(
        [rows[nearest == c].mean(0) if (nearest == c).any() else centres[c] for c in range(3)]
    )


def starts(case):
    return KMeansStart().mixtures(case.data, [3] * case.data.n_nodes, 7, 1e-6).means


def test_neighbour_form_against_a_plain_loop(alike):
    sent = list(starts(alike))
    for _ in range(4):
        averaged = []
        for i in range(6):
            neighbours = [sent[j] for j in ((i - 1) % 6, (i + 1) % 6)]
            received = [other[matched(sent[i], other)] for other in neighbours]
            averaged.append(np.mean([sent[i], *received], axis=0))
        sent = [plain_lloyd(averaged[i], alike.rows[i]) for i in range(6)]
    np.testing.assert_allclose(fit(alike, "fedkmeans").means_, averaged, atol=1e-10)


def test_hub_form_against_a_plain_loop(uneven):
    sent = list(starts(uneven))
    shared = sent[
        Participants(uneven.data.labels, uneven.data.counts, uneven.network.degree, 0).order[0]
    ]
    for _ in range(4):
        aligned = [own[matched(shared, own)] for own in sent]
        shared = np.average(aligned, axis=0, weights=uneven.data.counts)
        sent = [plain_lloyd(shared, rows) for rows in uneven.rows]
    model = fit(uneven, FedKMeans(server=True))
    np.testing.assert_allclose(model.means_, np.tile(shared, (5, 1, 1)), atol=1e-10)


def test_one_node_is_k_means(alike):
    rows = alike.rows[0]
    model = NetworkGaussianMixture(3, method="fedkmeans", n_rounds=4, random_state=7).fit(rows)
    kmeans = KMeans(3, n_init=10, random_state=0).fit(rows)
    order = matched(kmeans.cluster_centers_, model.means_)
    np.testing.assert_allclose(model.means_[order], kmeans.cluster_centers_, atol=1e-10)
    assert model.history_.fit[-1] == pytest.approx(kmeans.inertia_ / len(rows))


def test_on_a_complete_graph_neighbours_do_what_a_hub_does(blocks):
    around = fit(blocks, FedKMeans()).means_
    hub = fit(blocks, FedKMeans(server=True)).means_
    for own, shared in zip(around, hub, strict=True):
        np.testing.assert_allclose(own, shared[matched(own, shared)], atol=1e-10)


def test_prediction_is_the_nearest_centre(uneven):
    model = fit(uneven, "fedkmeans")
    new = uneven.scenario.X_validation
    nodes = uneven.scenario.nodes_validation
    distance = np.linalg.norm(new[:, None] - model.means_[nodes], axis=-1)
    np.testing.assert_array_equal(model.predict(new, nodes=nodes), distance.argmin(1))


def test_cold_rounds_do_not_accumulate(alike):
    """The authors' earlier code: every round averages fresh local k-means."""
    for server in (True, False):
        method = FedKMeans(server=server, warm_start=False)
        one, four = (fit(alike, method, n_rounds=n) for n in (1, 4))
        np.testing.assert_allclose(one.means_, four.means_, atol=1e-12)


def test_averaging_removes_the_noise_of_small_nodes():
    """With n alike nodes the error falls by about the root of n (the paper's Table 2)."""
    ratios = []
    for seed in range(5):
        s = homogeneous(n_nodes=9, n_components=2, n_train=50, seed=seed)
        settings = {"graph": complete(range(9)), "random_state": 0, "n_rounds": 4}
        model = NetworkGaussianMixture(2, method=FedKMeans(server=True), **settings)
        model.fit(s.X, nodes=s.nodes)
        data = NodeData.from_rows(s.X, s.nodes)
        local = KMeansStart().mixtures(data, [2] * 9, 0, 1e-6).means
        ratios.append(centroid_error(local, s.means) / centroid_error(model.means_, s.means))
    assert 2 < np.median(ratios) < 5


def test_a_centre_without_rows_stays():
    with double():
        rows = jnp.array([[[0.0, 0.0], [1.0, 0.0], [9.0, 9.0]]])
        data = NodeRows(rows, jnp.array([[0.5, 0.5, 0.0]]), jnp.array([2.0]))
        centres = jnp.array([[[0.4, 0.1], [9.0, 9.0], [50.0, 50.0]]])
        moved = lloyd(centres, data)
    np.testing.assert_allclose(moved, [[[0.5, 0.0], [9.0, 9.0], [50.0, 50.0]]])


def test_messages(alike):
    around, hub = (fit(alike, FedKMeans(server=server)).traffic_ for server in (False, True))
    assert around.message_bytes == hub.message_bytes == 3 * 2 * 8
    assert around.sent == dict.fromkeys(range(6), 4 * 2 * 48)
    assert (around.recipients, hub.recipients) == ("neighbours", "hub")
    assert hub.sent == dict.fromkeys(range(6), 4 * 48 + 8)  # and the number of rows, once
    assert hub.received == dict.fromkeys(range(6), 4 * 48)
