"""The numbers of trust.md: Trust-then-Pool beside what it is measured against, seed by seed.

python docs/trust_measure.py sbm-0.2 homogeneous star --seeds 1000 1008
"""

import argparse

import jax
import jax.numpy as jnp
import numpy as np

from fedmixtures import Centralized, Local, NetworkGaussianMixture, ShapePrior, TrustThenPool
from fedmixtures.data import digits_scenario, homogeneous, shifted_blocks
from fedmixtures.graph import generate
from fedmixtures.methods.base import Outgoing
from fedmixtures.methods.trust_then_pool.schedule import Kind, kind_of

LIAR_ROWS = 51


class ConstantSender(TrustThenPool):
    """A liar (known by its 51 rows) that pools nobody's statistics but its own: infinite mass."""

    def outgoing(self, state, weight):
        said = super().outgoing(state, weight)
        bit, letter = said.per_slot
        lies = (state.fits.rows == LIAR_ROWS) & (
            kind_of(state.round[0], self.agree_rounds) == Kind.POOL
        )
        own = jax.tree.map(
            lambda mine, part: jnp.where(
                lies.reshape(-1, *(1,) * (part.ndim - 1)), mine[:, None], part
            ),
            state.own,
            letter,
        )
        return Outgoing(said.broadcast, (bit, own))


def sbm(p_out, seed, **options):
    return shifted_blocks(seed=seed, **options), generate.stochastic_blocks(
        [5] * 3, 0.8, p_out, seed
    )


def uneven_rows(seed):
    low, high = np.log(10), np.log(500)
    return np.exp(np.random.default_rng([seed, 5]).uniform(low, high, 15)).astype(int)


def liars(count, seed):
    """Some nodes draw from their block's mixture, shifted by one standard deviation."""
    rng = np.random.default_rng([seed, 9])
    chosen = rng.choice(15, count, replace=False)
    rows = np.where(np.isin(np.arange(15), chosen), LIAR_ROWS, 50)
    scenario, network = sbm(0.2, seed, rows_per_node=rows)
    for node in chosen:
        shift = rng.standard_normal(2)
        scenario.X[scenario.nodes == node] += shift / np.linalg.norm(shift)
    return scenario, network, chosen


def problem(name, seed):
    """Scenario, network, components of each node, rounds, nodes that lie."""
    alike = lambda: homogeneous(n_nodes=15, n_components=5, n_train=50, seed=seed)
    k, kind, _, value = 5, *name.partition("-")
    if kind == "sbm":
        return *sbm(float(value), seed), k, 40, []
    if kind == "shift":
        return *sbm(0.2, seed, shift_scale=float(value)), k, 40, []
    if kind == "differ":
        return *sbm(0.2, seed, differ=value), k, 40, []
    if kind == "rows":
        return *sbm(0.2, seed, rows_per_node=uneven_rows(seed)), k, 40, []
    if kind == "components":
        drawn = np.random.default_rng([seed, 6]).integers(3, 8, 15)
        return *sbm(0.2, seed), dict(enumerate(drawn.tolist())), 40, []
    if kind == "liars":
        scenario, network, chosen = liars(int(value), seed)
        return scenario, network, k, 40, chosen
    if kind == "digits":
        scenario = digits_scenario(concentration=float(value), seed=seed)
        return scenario, generate.erdos_renyi_ring(10, 0.5, seed), 10, 25, []
    graph = {
        "homogeneous": lambda: generate.erdos_renyi_ring(15, 0.5, seed),
        "ring": lambda: generate.ring(15),
        "star": lambda: generate.star(15),
    }[kind]
    return alike(), graph(), k, 40, []


def by_node(model, scenario, nodes):
    """Mean validation log-density of each node."""
    validation = scenario.nodes_validation
    return np.array(
        [
            model.mixtures_[i].log_density(scenario.X_validation[validation == i]).mean()
            for i in nodes
        ]
    )


def oracle(method, scenario, k, seed, honest):
    """The rows of each true block, pooled; liars' rows are left out."""
    blocks = scenario.blocks if scenario.blocks is not None else np.zeros(scenario.n_nodes, int)
    values = {}
    for block in np.unique(blocks):
        members = [i for i in honest if blocks[i] == block]
        rows = np.isin(scenario.nodes, members)
        model = NetworkGaussianMixture(k, method=method, random_state=seed)
        model.fit(scenario.X[rows], nodes=scenario.nodes[rows])
        values |= dict(zip(members, by_node(model, scenario, members), strict=True))
    return np.array([values[i] for i in honest])


def measure(name, seed):
    scenario, network, k, n_rounds, lying = problem(name, seed)
    honest = [i for i in range(scenario.n_nodes) if i not in set(lying)]
    size = k if isinstance(k, int) else 5
    prior = {"engine": "jax", "prior": ShapePrior(), "reg_covar": 1e-3, "n_init": 10}

    def fitted(method):
        model = NetworkGaussianMixture(
            k, graph=network, method=method, n_rounds=n_rounds, random_state=seed
        ).fit(scenario.X, nodes=scenario.nodes)
        return by_node(model, scenario, honest).mean()

    return {
        "trust": fitted(ConstantSender() if len(lying) else TrustThenPool()),
        "oracle": oracle(Centralized(n_init=10), scenario, size, seed, honest).mean(),
        "oracle+prior": oracle(Centralized(**prior), scenario, size, seed, honest).mean(),
        "local+prior": fitted(Local(**prior)),
        "local": fitted(Local(n_init=10)),
        "gtv-mmd": fitted("gtv-mmd") if isinstance(k, int) else np.nan,
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="+")
    parser.add_argument("--seeds", nargs=2, type=int, default=(1000, 1004))
    chosen = parser.parse_args()
    for name in chosen.names:
        found = [measure(name, seed) for seed in range(*chosen.seeds)]
        table = {key: np.array([one[key] for one in found]) for key in found[0]}
        line = " ".join(f"{key} {np.median(values):.3f}" for key, values in table.items())
        gaps = []
        for key in ("oracle", "oracle+prior", "local+prior"):
            gap = table["trust"] - table[key]
            gaps.append(f"to {key} {np.median(gap):+.4f} (worst {gap.min():+.4f})")
        print(f"{name}: {line} | {'; '.join(gaps)}", flush=True)


if __name__ == "__main__":
    main()
