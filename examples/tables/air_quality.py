"""Twelve stations in and around one city: the tutorial "Air quality".

python examples/tables/air_quality.py FOLDER-OR-CSV FIGURE.png > OUTPUT.txt

FOLDER holds UCI's twelve files ``PRSA_Data_<station>_20130301-20170228.csv`` of hourly values; a
CSV has daily means, the station in the column ``node`` and the day in ``date``.
"""

import sys
from datetime import date
from importlib.metadata import version
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from fedmixtures import NetworkGaussianMixture

POSITIVE = ["PM2.5", "PM10", "SO2", "NO2", "CO", "O3", "WSPM"]
FEATURES = ["PM2.5", "PM10", "SO2", "NO2", "CO", "O3", "TEMP", "PRES", "DEWP", "WSPM"]
SEASONS = ["winter", "spring", "summer", "autumn"]
WHERE = {
    "Aotizhongxin": (116.40, 39.98),
    "Changping": (116.23, 40.22),
    "Dingling": (116.22, 40.29),
    "Dongsi": (116.42, 39.93),
    "Guanyuan": (116.34, 39.93),
    "Gucheng": (116.18, 39.91),
    "Huairou": (116.63, 40.33),
    "Nongzhanguan": (116.46, 39.94),
    "Shunyi": (116.66, 40.13),
    "Tiantan": (116.41, 39.89),
    "Wanliu": (116.29, 39.99),
    "Wanshouxigong": (116.35, 39.88),
}
"""Degrees east and north, for the picture alone."""
source, picture = map(Path, sys.argv[1:])


def read() -> pd.DataFrame:
    """Daily means of all stations."""
    if source.is_file():
        return pd.read_csv(source)
    hours = pd.concat([pd.read_csv(path) for path in sorted(source.glob("PRSA_Data_*.csv"))])
    hours["date"] = pd.to_datetime(hours[["year", "month", "day"]])
    days = hours.groupby(["station", "date"])[FEATURES].mean().dropna().reset_index()
    return days.rename(columns={"station": "node"})


# 1. The rows: concentrations and wind as logarithms; 200 days of every station to learn from
days = read()
days["season"] = [SEASONS[month % 12 // 3] for month in pd.to_datetime(days["date"]).dt.month]
days[POSITIVE] = np.log(days[POSITIVE].clip(lower=0.1))
train = days.groupby("node").sample(200, random_state=0)
test = days.drop(train.index)
rows, held = train[["node", *FEATURES]], test[["node", *FEATURES]]
print(f"{train['node'].nunique()} stations, {len(train)} days to fit, {len(test)} held out")

# 2. Does it pay to listen?
alone = NetworkGaussianMixture(4, graph="none", random_state=0).fit(rows, nodes="node")
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

# 5. The stations on the map (which the fit has not seen), with the edges that both ends trust
trust = model.trust_
place = np.array([WHERE[node] for node in model.nodes_])
fig, axis = plt.subplots(figsize=(6, 5))
for a, b, trusted in zip(trust.source, trust.target, trust.trusted, strict=True):
    if trusted:
        axis.plot(*place[[a, b]].T, color="#999", zorder=0)
axis.scatter(*place.T, c=trust.group, cmap="tab10", s=50)
for node, (x, y) in zip(model.nodes_, place, strict=True):
    side, away = ("right", -5) if x < 116.38 else ("left", 5)
    axis.annotate(node, (x, y), (away, 3), textcoords="offset points", fontsize=8, ha=side)
axis.set(xlabel="east", ylabel="north", aspect=1.3)
axis.margins(x=0.3)
fig.tight_layout()
fig.savefig(picture, dpi=110)

versions = ", ".join(f"{name} {version(name)}" for name in ("fedmixtures", "jax", "numpy"))
print(f"\nMade by examples/tables/air_quality.py on {date.today()}, {versions}")
