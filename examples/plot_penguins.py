"""
Penguins on three islands
=========================

Three research stations, each on an island of the Palmer Archipelago, have measured penguins. Each
station wants to know which kinds there are on its island. It knows its own birds alone, and none of
the stations has met all species. They exchange models, never birds.

The table is that of the package ``palmerpenguins`` (Gorman, Williams and Fraser, 2014; CC0).
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from palmerpenguins import load_penguins

from fedmixtures import NetworkGaussianMixture
from fedmixtures.data import holdout

features = ["bill_length_mm", "bill_depth_mm", "flipper_length_mm", "body_mass_g"]
birds = load_penguins().dropna(subset=features, how="all")
table = birds[["island", *features]]
print(birds.groupby("island").size().to_string())

# %%
# Does it pay to listen?
# ----------------------
# We hold out a third of every island's birds, fit the rest with and without neighbours, and ask how
# likely the held-out birds are. With ``graph="none"`` nobody listens; without a graph every
# station may listen to the two others. Grams and millimetres need no standardising.
held = holdout(table["island"].to_numpy(), 1 / 3, 0)
for name, graph in {"own birds only": "none", "with neighbours": None}.items():
    model = NetworkGaussianMixture(3, graph=graph, random_state=0)
    model.fit(table[~held], nodes="island")
    score = model.score(table[held], nodes="island")
    print(f"{name:16s} {score:.2f} nats per held-out bird")

# %%
# Now all birds. What does a station rely on?
model = NetworkGaussianMixture(3, graph="full", random_state=0).fit(table, nodes="island")
model.align_components()
print(model.explain("Torgersen"))

# %%
# The stations do not take each other for the same: a neighbour's birds, added to one's own, make
# held-out birds less likely (a negative *gain*), so no two of them pool. They rely on the level
# *personal* instead: a mixture of everyone's birds, fitted by sums over all stations, and then
# moved to one's own.
weights = pd.DataFrame(model.levels_.weights, model.nodes_, model.levels_.names)
print(weights.round(2).to_string())

# %%
# Which birds are where?
# ----------------------
# The components have the same meaning on all islands. We have not used the species, which
# biologists noted for each bird; here they stand beside the components.
component = model.predict(table, nodes="island")
print(pd.crosstab([birds["island"], birds["species"]], component).to_string())

# %%
# Each component is a species, found without a label. On Torgersen live Adelie penguins alone: its
# station gives nearly all weight to one of the three components and almost none to the others,
# which it knows from hearsay. Alone it could not have found that out: three components of its own
# cut the Adelies into three.
own = model.levels_.theta.at(0).weights  # the level "own", in the order of `nodes_`
print("Torgersen alone:", own[list(model.nodes_).index("Torgersen")].round(2))
shares = pd.DataFrame(model.weights_, model.nodes_, ["component 0", "component 1", "component 2"])
print(shares.round(2).to_string())

# %%
# The picture shows every island's birds and its own components, as ellipses of one standard
# deviation; a component that weighs next to nothing is left out.
circle = np.linspace(0, 2 * np.pi, 100)
circle = np.stack([np.cos(circle), np.sin(circle)])
fig, axes = plt.subplots(1, 3, figsize=(9, 3.2), sharex=True, sharey=True)
for axis, island in zip(axes, model.nodes_, strict=True):
    here = (birds["island"] == island).to_numpy()
    colours = np.array(["C0", "C1", "C2"])
    axis.scatter(*table.loc[here, features[:2]].to_numpy().T, 6, colours[component[here]])
    mixture = model.mixtures_[island]
    for weight, mean, covariance, colour in zip(*mixture.parts, colours, strict=True):
        if weight > 0.05:
            outline = mean[:2, None] + np.linalg.cholesky(covariance[:2, :2]) @ circle
            axis.plot(*outline, color=colour)
    axis.set(title=island, xlabel="bill length (mm)")
axes[0].set_ylabel("bill depth (mm)")
fig.tight_layout()
plt.show()

# %%
# A bird without a scale
# ----------------------
# A cell that is missing is ``NaN``; here a bird on Torgersen was never weighed. The model says what
# it would have weighed, and draws show how sure that is.
bird = pd.DataFrame([["Torgersen", 39.0, 18.0, 190.0, np.nan]], columns=table.columns)
weighed = model.impute(bird, nodes="island")["body_mass_g"].iloc[0]
draws = [drawn["body_mass_g"].iloc[0] for drawn in model.impute(bird, nodes="island", n_draws=500)]
low, high = np.quantile(draws, [0.05, 0.95])
print(f"about {weighed:.0f} g; nine in ten between {low:.0f} and {high:.0f} g")

# %%
# What we have learned
# --------------------
# - Listening pays: held-out birds became likelier, although no two islands have the same birds.
# - The islands are not alike, and the model says so (three groups of one). It borrows what is
#   common, how a species looks, and leaves each island its own: which species live there.
# - Three components are not too many for an island with one species: it gives the others no weight.
