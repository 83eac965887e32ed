"""
Wrong edges: which coupling survives them?
==========================================

Fifteen nodes in three groups of five, 50 rows each. Edges inside a group are right; a few edges
between groups are wrong. We fit every node alone, and with each coupling, and score held-out rows.
"""

import matplotlib.pyplot as plt

from fedmixtures import NetworkGaussianMixture
from fedmixtures.data import shifted_blocks
from fedmixtures.graph import stochastic_blocks

scenario = shifted_blocks(seed=1)
held_out = {"X": scenario.X_validation, "nodes": scenario.nodes_validation}


def score(method, p_out):
    """Mean held-out log-likelihood of a fit on a graph with this share of wrong edges."""
    graph = stochastic_blocks([5, 5, 5], 0.8, p_out, seed=1)
    model = NetworkGaussianMixture(5, graph=graph, method=method, random_state=0)
    return model.fit(scenario.X, nodes=scenario.nodes).score(**held_out)


# %%
# The same data and start for all; only the graph and the coupling change.
p_out = [0.0, 0.2, 0.8]
for method in ("gtv-mmd", "gtv-kl", "gtv-euclidean"):
    plt.plot(p_out, [score(method, p) for p in p_out], marker="o", label=method)
plt.xlabel("probability of a wrong edge between groups")
plt.ylabel("held-out log-likelihood per row")
plt.legend()
plt.show()
