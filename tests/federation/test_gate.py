"""The release gate: what may leave a node, and what an outlying record suffers without it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from federated import WIDE_OPEN, Sites, a_job, log_lines, record, site_rows
from fedmixtures import KL, MMD, Euclidean, FeasibleSet, GTVMin, Mixture
from fedmixtures.data.scenarios import shifted_blocks
from fedmixtures.federation.in_process import ask
from fedmixtures.federation.node.gate import (
    Gate,
    GateRefusal,
    Support,
    component_discrepancies,
    merge_nearest,
)
from fedmixtures.federation.node.rounding import rounded
from fedmixtures.federation.rounds import NodeRefused, parcels_of
from fedmixtures.federation.wire.frames import request
from fedmixtures.federation.wire.message import (
    ModelMessage,
    decode_message,
    decode_model,
    encode_message,
)
from fedmixtures.federation.wire.sealing import Address
from fedmixtures.graph.generate import stochastic_blocks
from fedmixtures.mixture.arithmetic import double
from fedmixtures.mixture.covariance_types import is_of_type
from helpers import mixture

FEASIBLE = FeasibleSet(min_weight=1e-4)


def three_groups(sizes):
    centres = np.array([[0.0, 0.0], [6.0, 0.0], [6.5, 2.0]])
    rng = np.random.default_rng(0)
    rows = np.repeat(centres, sizes, axis=0) + 0.3 * rng.standard_normal((sum(sizes), 2))
    weights = np.array(sizes) / sum(sizes)
    return Mixture(weights, centres, np.stack([0.1 * np.eye(2)] * 3)), rows


def test_effective_counts_are_summed_responsibilities():
    model, rows = mixture(1, k=3), np.random.default_rng(1).standard_normal((37, 2))
    expected = model.responsibilities(rows).sum(0)
    np.testing.assert_allclose(Support(rows).counts(model), expected, rtol=1e-12)


def test_rows_count_for_a_column_where_they_have_it():
    model, rows = three_groups((20, 15, 12))
    incomplete = rows.copy()
    incomplete[3:17, 1] = np.nan  # of the first group 20 rows, 6 of them with the second column
    np.testing.assert_allclose(Support(incomplete).counts(model), [6, 15, 12], atol=1e-3)
    people = np.arange(47) // 2  # four people's rows, of two of them two: 6^2 / (4 + 1 + 1 + 4)
    np.testing.assert_allclose(Support(incomplete, people).counts(model)[0], 3.6, atol=1e-3)
    released, merged = Gate().merged(model, Support(incomplete), FEASIBLE, may_merge=True)
    assert merged == 1
    assert (Support(incomplete).counts(released)[released.weights > 0] >= 11).all()


def test_a_covariance_rests_on_rows_that_have_both_columns():
    model, rows = three_groups((40, 30, 30))
    apart = rows.copy()
    apart[::2, 0] = apart[1::2, 1] = np.nan
    # No row has both: nothing about them together can be told. Each column has its half.
    np.testing.assert_allclose(Support(apart).counts(model).sum(), 50, atol=5)
    apart[0] = rows[0]
    assert Support(apart).counts(model)[0] == pytest.approx(1, abs=1e-6)


def test_a_site_that_lacks_a_column_is_gated_by_the_others():
    model, rows = three_groups((20, 15, 12))
    rows[:, 1] = np.nan
    assert Gate().merged(model, Support(rows), FEASIBLE, may_merge=False)[1] == 0
    rows[:3, 1] = 0.0  # three people's values, in any number of components
    assert Gate().merged(model, Support(rows), FEASIBLE, may_merge=True)[0] is None


@pytest.mark.parametrize(("d", "threshold"), [(1, 11), (2, 11), (3, 15), (16, 80)])
def test_the_threshold_grows_with_the_features(d, threshold):
    assert Gate().threshold(d) == threshold


def test_a_model_of_large_components_passes_unchanged():
    model, rows = three_groups((20, 15, 12))
    released, merged = Gate().merged(model, Support(rows), FEASIBLE, may_merge=False)
    assert merged == 0
    assert all(np.array_equal(a, b) for a, b in zip(released.parts, model.parts, strict=True))


def test_a_small_component_is_merged_into_its_nearest_and_moments_are_kept():
    model, rows = three_groups((20, 15, 5))
    released, merged = Gate().merged(model, Support(rows), FEASIBLE, may_merge=True)
    assert merged == 1
    kept = released.trimmed()
    assert kept.n_components == 2
    np.testing.assert_allclose(kept.means[0], model.means[0])
    mean = lambda m: m.weights @ m.means
    second = lambda m: (
        np.einsum("c,cij->ij", m.weights, m.covariances)
        + np.einsum("c,ci,cj->ij", m.weights, m.means, m.means)
    )
    np.testing.assert_allclose(mean(released), mean(model), atol=1e-12)
    np.testing.assert_allclose(second(released), second(model), atol=1e-12)
    # The empty place tells nothing about what stood there.
    absent = released.weights == 0
    assert (released.means[absent] == 0).all()


@pytest.mark.parametrize("kind", ["tied", "diag", "spherical"])
def test_merged_and_rounded_a_model_keeps_its_type(kind):
    feasible = FeasibleSet(min_weight=1e-4, covariance_type=kind)
    model, rows = three_groups((20, 15, 5))
    released, merged = Gate().merged(model, Support(rows), feasible, may_merge=True)
    assert merged == 1
    coarse = rounded(released, 0.1, 11, b"s" * 32, feasible)
    sent = decode_model(encode_message(ModelMessage(coarse), kind), 3, 2, feasible)
    for one in (released, coarse):
        assert is_of_type(one, kind)
    for ours, theirs in zip(coarse.parts, sent.mixture.parts, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    # Every free number lies on a grid of its own, far coarser than rounding errors.
    factor = np.linalg.cholesky(coarse.covariances[0])
    step = 0.1 * factor[0, 0] / np.sqrt(2 * 11) / 4
    np.testing.assert_allclose(np.remainder(factor[0, 0] / 2 ** np.floor(np.log2(step)), 1), 0)


def test_every_released_component_rests_on_enough_rows():
    rng = np.random.default_rng(2)
    for seed in range(15):
        model, rows = mixture(seed, k=5, spread=3), 3 * rng.standard_normal((50, 2))
        released, _ = Gate().merged(model, Support(rows), FEASIBLE, may_merge=True)
        counts = Support(rows).counts(released)
        assert ((counts >= 11) | (counts < 0.5)).all()


def test_a_component_without_an_own_row_passes():
    model, rows = three_groups((20, 15, 0))
    model = Mixture([0.4, 0.4, 0.2], model.means + np.array([[0], [0], [100.0]]), model.covariances)
    released, merged = Gate().merged(model, Support(rows), FEASIBLE, may_merge=False)
    assert merged == 0
    assert released.weights[2] == 0.2


def test_a_node_with_too_few_rows_only_listens():
    model, rows = three_groups((4, 3, 3))
    assert Gate().merged(model, Support(rows), FEASIBLE, may_merge=True) == (None, 0)


def test_nearest_is_by_mmd():
    model, _ = three_groups((20, 15, 5))
    squared = component_discrepancies(model)
    single = [Mixture([1.0], model.means[c][None], model.covariances[c][None]) for c in range(3)]
    for a in range(3):
        for b in range(3):
            np.testing.assert_allclose(
                squared[a, b], MMD().between(single[a], single[b]), atol=1e-12
            )


def test_a_merge_stays_inside_the_feasible_set():
    narrow = FeasibleSet(max_variance=2.0)
    wide = merge_nearest(Mixture([0.5, 0.5], [[0.0, 0], [9.0, 0]], [np.eye(2)] * 2), 0, narrow)
    with double():
        again = narrow.project(jax.tree.map(jnp.asarray, wide)).to_numpy()
    np.testing.assert_allclose(again.covariances, wide.covariances)
    assert np.linalg.eigvalsh(wide.covariances).max() <= 2.0 + 1e-12


def few_rows():
    rows = site_rows((96, 96, 96, 96))
    return rows | {"aachen": np.concatenate([rows["aachen"][:60], rows["aachen"][:4] + 40.0])}


def told_to(sites, job, source, destination):
    """What actually leaves: the box opened at its destination."""
    ask(sites.nodes[source], sites.hello(job))
    reply = ask(sites.nodes[source], request("share", job=job.key, round=0))
    parcel = next(p for p in parcels_of(reply) if p.destination == destination)
    address = Address(job.key, 0, source, destination)
    content = sites.keys[destination].open(parcel.box, sites.roster.sites[source], address)
    return decode_message(content, job.most_components, len(job.features), None)


@pytest.mark.parametrize("coupling", [MMD(), KL(n_samples=5)], ids=["MMD", "KL"])
def test_merged_models_travel(tmp_path, coupling):
    job = a_job(GTVMin(coupling, n_local_steps=1, feasible=FeasibleSet()), n_rounds=2)
    sites = Sites(tmp_path, few_rows())
    assert told_to(sites, job, "aachen", "bergen").trimmed().n_components < 3
    sites.run(job)
    assert all(node.sessions[job.key].round == 2 for node in sites.nodes.values())


def test_euclidean_refuses(tmp_path):
    job = a_job(GTVMin(Euclidean(), n_local_steps=1, feasible=FeasibleSet()), n_rounds=2)
    sites = Sites(tmp_path, few_rows())
    with pytest.raises(NodeRefused, match="Use MMD or KL") as refusal:
        told_to(sites, job, "aachen", "bergen")
    assert not any(digit in str(refusal.value) for digit in "0123456789")
    with pytest.raises(GateRefusal):
        Gate().merged(*_small(), FEASIBLE, may_merge=False)


def _small():
    model, rows = three_groups((20, 15, 5))
    return model, Support(rows)


def test_a_listening_node_learns_but_tells_nothing(tmp_path):
    rows = site_rows((96, 96, 96, 96))
    rows["aachen"] = rows["aachen"][:9]
    job = a_job(GTVMin(MMD(), n_local_steps=1, feasible=FeasibleSet()), n_rounds=2)
    sites = Sites(tmp_path, rows)
    assert told_to(sites, job, "aachen", "bergen") is None
    exchange = sites.run(job)
    assert exchange.replies["bergen"].head["silent"] == ["aachen"]
    assert exchange.replies["bergen"].head["dropped"] == []
    assert sites.nodes["aachen"].sessions[job.key].round == 2


@pytest.mark.silos
def test_an_outlying_record_is_published_without_the_gate_and_never_with_it(tmp_path):
    figures, n = {}, 200
    for distance in (5.0, 5.5, 6.0, 7.0):
        shares = {}
        for name, gate in (("without gate", WIDE_OPEN), ("with gate", Gate())):
            shares[name] = _published_share(tmp_path / f"{distance}{name}", distance, gate, n)
        figures[f"{distance:g}"] = shares
        assert shares["with gate"] == 0
    assert figures["6"]["without gate"] > 0.2
    record("outlier", seed=0, nodes=n, rows=30, features=2, components=2, within=0.01,
           share_of_nodes_by_distance_of_the_record=figures)  # fmt: skip


def _published_share(folder, distance, gate, n):
    """Share of nodes whose first message has a mean within 0.01 of their outlying record."""
    rng, hits = np.random.default_rng(0), 0
    job = a_job(
        GTVMin(MMD(), n_local_steps=1, feasible=FeasibleSet()),
        n_components=dict.fromkeys(("aachen", "bergen"), 2),
        edges=(("aachen", "bergen", 1.0),),
    )
    for i in range(n):
        angle = rng.uniform(0, 2 * np.pi)
        outlier = distance * np.array([np.cos(angle), np.sin(angle)])
        rows = np.concatenate([rng.standard_normal((29, 2)), outlier[None]])
        sites = Sites(folder / str(i), {"aachen": rows, "bergen": rows}, gate)
        sent = told_to(sites, job, "aachen", "bergen").trimmed()
        hits += (np.linalg.norm(sent.means - outlier, axis=1) < 0.01).any()
    return hits / n


def _three_blocks(folder, seed, gate):
    """Held-out log-likelihood of the three-block network, and the share of merged components."""
    data = shifted_blocks(seed=seed)
    network = stochastic_blocks([5, 5, 5], 0.8, 0.2, seed)
    names = [f"n{label:02d}" for label in data.labels]
    rows = {name: data.X[data.nodes == i] for i, name in enumerate(names)}
    ends = zip(network.source, network.target, network.weight, strict=True)
    job = a_job(
        GTVMin(MMD(), feasible=FeasibleSet()),
        n_components=dict.fromkeys(names, 5),
        edges=tuple((names[a], names[b], float(w)) for a, b, w in ends),
        n_rounds=40,
        seed=seed,
    )
    sites = Sites(folder, rows, gate)
    sites.run(job)
    found = sites.results(job)
    scores = [
        found[name].log_density(data.X_validation[data.nodes_validation == i]).mean()
        for i, name in enumerate(names)
    ]
    sent = [line for name in names for line in log_lines(folder, name) if line["event"] == "sent"]
    return float(np.mean(scores)), float(np.mean([line["merged"] for line in sent])) / 5


@pytest.mark.silos
def test_the_price_of_the_gate_on_the_three_block_network(tmp_path):
    figures = {"without gate": [], "with gate": [], "share of components merged": []}
    for seed in range(5):
        open_, none = _three_blocks(tmp_path / f"open{seed}", seed, WIDE_OPEN)
        gated, merged = _three_blocks(tmp_path / f"gate{seed}", seed, Gate())
        assert none == 0
        assert merged > 0
        figures["without gate"].append(open_)
        figures["with gate"].append(gated)
        figures["share of components merged"].append(merged)
    price = np.array(figures["without gate"]) - np.array(figures["with gate"])
    assert abs(price.mean()) < 1.0
    record("gate-price", seed=0, seeds=len(price), nodes=15, rows=50, components=5, rounds=40,
           p_out=0.2, coupling="MMD",
           mean_price_in_held_out_log_likelihood=float(price.mean()),
           standard_error=float(price.std(ddof=1) / len(price) ** 0.5), **figures)  # fmt: skip


@pytest.mark.silos
def test_the_price_of_rounding_on_the_three_block_network(tmp_path):
    """Held-out log-likelihood against neither gate nor rounding, over fractions and thresholds."""
    gates = {
        "gate alone": Gate(rounding=0.0),
        "rounding 0.1": Gate(),
        "rounding 0.3": Gate(rounding=0.3),
        "rounding 1": Gate(rounding=1.0),
        "count 20, rounding 0.1": Gate(min_count=20),
    }
    losses = {name: [] for name in gates}
    for seed in range(3):
        open_, _ = _three_blocks(tmp_path / f"open{seed}", seed, WIDE_OPEN)
        for name, gate in gates.items():
            got, _ = _three_blocks(tmp_path / f"{name}{seed}", seed, gate)
            losses[name].append(open_ - got)
    medians = {name: float(np.median(found)) for name, found in losses.items()}
    record("rounding-price", seed=0, seeds=3, nodes=15, rows=50, components=5, rounds=40, p_out=0.2,
           coupling="MMD", loss_of_held_out_log_likelihood=losses, median_loss=medians)  # fmt: skip
    assert medians["rounding 0.1"] <= 0.01
