"""Twelve stations in and around one city: the tutorial "Air quality".

python examples/tables/air_quality.py FOLDER-OR-CSV FIGURE.png > OUTPUT.txt

FOLDER holds UCI's twelve files ``PRSA_Data_<station>_20130301-20170228.csv`` of hourly values; a
CSV has daily means, the station in the column ``node`` and the day in ``date``.
"""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import networkx as nx
import numpy as np
import pandas as pd

from fedmixtures import NetworkGaussianMixture

POSITIVE = ["PM2.5", "PM10", "SO2", "NO2", "CO", "O3", "WSPM"]
FEATURES = ["PM2.5", "PM10", "SO2", "NO2", "CO", "O3", "TEMP", "PRES", "DEWP", "WSPM"]
SEASONS = ["winter", "spring", "summer", "autumn"]
source, picture = map(Path, sys.argv[1:])


def read() -> pd.DataFrame:
    """Daily means of all stations."""
    if source.is_file():
        return pd.read_csv(source)
    hours = pd.concat([pd.read_csv(path) for path in sorted(source.glob("PRSA_Data_*.csv"))])
    hours["date"] = pd.to_datetime(hours[["year", "month", "day"]])
    days = hours.groupby(["station", "date"])[FEATURES].mean().dropna().reset_index()
    return days.rename(columns={"station": "node"})


# 1. The rows: concentrations and wind as logarithms; a hundred days of every station to learn from
days = read()
days["season"] = [SEASONS[month % 12 // 3] for month in pd.to_datetime(days["date"]).dt.month]
days[POSITIVE] = np.log(days[POSITIVE].clip(lower=0.1))
train = days.groupby("node").sample(100, random_state=0)
test = days.drop(train.index)
rows, held = train[["node", *FEATURES]], test[["node", *FEATURES]]
print(f"{train['node'].nunique()} stations, {len(train)} days to fit, {len(test)} held out")

# 2. Does it pay to listen?
alone = NetworkGaussianMixture(4, random_state=0).fit(rows, nodes="node")
model = NetworkGaussianMixture(4, graph="full", random_state=0).fit(rows, nodes="node")
model.align_components()
gain = model.score_samples(held, nodes="node") - alone.score_samples(held, nodes="node")
gain = pd.Series(gain).groupby(test["node"].to_numpy()).mean()
print(f"\nOwn days only    {alone.score(held, nodes='node'):.2f} nats per held-out day")
print(f"With neighbours  {model.score(held, nodes='node'):.2f}")
print(f"Gain of the stations: {gain.min():+.2f} to {gain.max():+.2f}")

# 3. Who belongs together?
print("\nGroups")
for group in model.trust_.groups:
    print("  " + ", ".join(group))
print("\n" + model.explain("Dingling"))
weights = pd.DataFrame(model.levels_.weights, model.nodes_, model.levels_.names)
print("\nWeights of the levels\n" + weights.round(2).to_string())

# 4. Kinds of days
component = model.predict(held, nodes="node")
means = pd.DataFrame(model.means_.mean(0), columns=FEATURES)
means[POSITIVE] = np.exp(means[POSITIVE])
print("\nTypical day of every component (geometric means of concentrations and wind)")
print(means.round(1).to_string())
print("\nSeasons, share of held-out days by component")
print(pd.crosstab(test["season"], component, normalize="index").round(2).to_string())

# 5. The network that the stations found
trust = model.trust_
graph = nx.Graph()
graph.add_nodes_from(model.nodes_)
for a, b, trusted in zip(trust.source, trust.target, trust.trusted, strict=True):
    if trusted:
        graph.add_edge(model.nodes_[a], model.nodes_[b])
place = nx.spring_layout(graph, seed=1, k=0.9)
fig, axis = plt.subplots(figsize=(6.5, 4.2))
nx.draw_networkx(
    graph, place, ax=axis, node_color=trust.group, cmap="tab10", node_size=120, font_size=7,
    edge_color="#999",
)  # fmt: skip
axis.margins(0.15)
axis.set_axis_off()
fig.tight_layout()
fig.savefig(picture, dpi=110)
