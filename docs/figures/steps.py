"""The pictures of docs/trust.md, one for each step: python docs/figures/steps.py docs/images

Two nodes of two groups (0 and 5) of the example that the page names, 15 nodes of 50 rows.
"""

import sys
from pathlib import Path

import matplotlib as mpl
import numpy as np

from fedmixtures import NetworkGaussianMixture, stochastic_blocks
from fedmixtures.data import shifted_blocks

mpl.use("Agg")
import matplotlib.pyplot as plt

COLOURS = "#2563eb", "#d97706"
PAIR = 0, 5
CIRCLE = np.stack([np.cos(np.linspace(0, 2 * np.pi, 80)), np.sin(np.linspace(0, 2 * np.pi, 80))])


def ellipses(axis, weights, means, covariances, colour, style="-"):
    """Two standard deviations around every component, thicker where it weighs more."""
    for weight, mean, covariance in zip(weights, means, covariances, strict=True):
        outline = mean[:, None] + 2 * np.linalg.cholesky(covariance) @ CIRCLE
        if weight > 0.01:
            axis.plot(*outline, style, color=colour, lw=0.6 + 3 * weight)


def main(folder: Path) -> None:
    """Fit the example and draw every step."""
    s = shifted_blocks(seed=0)
    nodes = np.asarray(s.nodes)
    graph = stochastic_blocks([5, 5, 5], 0.8, 0.2, seed=0)
    model = NetworkGaussianMixture(5, graph=graph, random_state=0).fit(s.X, nodes=s.nodes)
    levels, labels = model.levels_, list(model.nodes_)
    rows = {node: s.X[nodes == node] for node in labels}
    low, high = s.X.min(0) - 1, s.X.max(0) + 1

    def panel(name):
        figure, axis = plt.subplots(figsize=(3.4, 2.5), dpi=110, layout="constrained")
        axis.set(xticks=[], yticks=[], xlim=(low[0], high[0]), ylim=(low[1], high[1]))
        return figure, axis, folder / f"step-{name}.png"

    def level(axis, name, node, colour, style="-"):
        at = levels.theta.at(levels.names.index(name)).at(labels.index(node))
        ellipses(axis, *map(np.asarray, at.parts), colour, style)

    def saved(made):
        figure, _, path = made
        figure.savefig(path)
        plt.close(figure)

    def dots(axis, node, colour):
        axis.scatter(*rows[node].T, 6, colour, alpha=0.6, linewidths=0)

    for name, of in {
        "own": "own",
        "personal": "personal",
        "group": "group",
        "near": "near",
    }.items():
        made = panel(name)
        for node, colour in zip(PAIR, COLOURS, strict=True):
            dots(made[1], node, colour)
            level(made[1], of, node, colour)
        saved(made)

    made = panel("release")  # what a neighbour sees: no rows
    level(made[1], "own", PAIR[0], COLOURS[0])
    made[1].text(*(low + 0.03 * (high - low)), "50 rows", color=COLOURS[0])
    saved(made)

    made = panel("everyone")
    made[1].scatter(*s.X.T, 3, "#94a3b8", linewidths=0)
    level(made[1], "everyone", PAIR[0], "#0f172a")
    saved(made)

    made = panel("listen")
    axis = made[1]
    axis.set(xlim=(-1, 1), ylim=(-0.5, 4.5), xlabel="nats a held-out row gains", xticks=(-0.7, 0))
    edges = [edge for edge in model.trust_.edges() if PAIR[0] in (edge["source"], edge["target"])]
    gains = {}
    for edge in edges:
        end = int(edge["target"] == PAIR[0])
        gains[edge["target"] if end == 0 else edge["source"]] = edge["gain"][end]
    names = sorted(gains)
    axis.barh(range(len(names)), [gains[n] for n in names],
              color=["#059669" if gains[n] > 0 else "#dc2626" for n in names])  # fmt: skip
    axis.set(yticks=range(len(names)), yticklabels=[f"node {n}" for n in names])
    axis.set(ylim=(-0.6, len(names) - 0.4))
    axis.axvline(0, color="#0f172a", lw=0.8)
    saved(made)

    made = panel("weigh")
    axis = made[1]
    for offset, node, colour in zip((0.2, -0.2), PAIR, COLOURS, strict=True):
        axis.barh(np.arange(5) + offset, levels.weights[labels.index(node)], 0.38, color=colour)
    axis.set(xlim=(0, 1), ylim=(4.6, -0.6), xticks=(0, 1), xlabel="weight")
    axis.set(yticks=range(5), yticklabels=levels.names)
    saved(made)

    made = panel("clusters")
    cluster = model.predict(s.X, nodes=s.nodes)
    for number in range(model.n_clusters_):
        made[1].scatter(*s.X[cluster == number].T, 4, f"C{number}", linewidths=0)
    saved(made)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/images"))
