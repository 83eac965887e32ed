"""Four hospitals and one column that one of them lacks: the tutorial "Heart disease".

python examples/tables/heart_disease.py FOLDER-OR-CSV FIGURE.png > OUTPUT.txt

FOLDER holds UCI's four files ``processed.cleveland.data``, ``.hungarian``, ``.switzerland`` and
``.va``; a CSV has the same columns under their names, and the hospital in the column ``node``.
"""

import sys
from datetime import date
from importlib.metadata import version
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from fedmixtures import NetworkGaussianMixture
from fedmixtures.data import holdout

COLUMNS = ["age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang", "oldpeak"]
COLUMNS += ["slope", "ca", "thal", "target"]
FEATURES = ["age", "trestbps", "chol", "thalach", "oldpeak"]
source, picture = map(Path, sys.argv[1:])


def hospital(path: Path) -> pd.DataFrame:
    """One of UCI's files; a cholesterol or blood pressure of 0 was never measured."""
    rows = pd.read_csv(path, names=COLUMNS, na_values="?")
    rows[["chol", "trestbps"]] = rows[["chol", "trestbps"]].replace(0, np.nan)
    return rows.assign(node=path.suffixes[0][1:])


def read() -> pd.DataFrame:
    """All patients."""
    if source.is_file():
        return pd.read_csv(source)
    return pd.concat([hospital(p) for p in sorted(source.glob("processed.*.data"))])


# 1. The rows. Values that were rounded are spread over what was rounded away: the density of values
# that repeat exactly could grow without end.
patients = read().dropna(subset=FEATURES, how="all").reset_index(drop=True)
rng = np.random.default_rng(0)
for column, resolution in {"oldpeak": 0.1, "trestbps": 2.0}.items():
    patients[column] += resolution * rng.uniform(size=len(patients))
table = patients[["node", *FEATURES]]
print("Patients, and the share of missing cells")
missing = table.isna().groupby(table["node"])[FEATURES].mean()
print(missing.assign(patients=table.groupby("node").size()).round(2).to_string())

# 2. Does it pay to listen? Ten splits, a third of every hospital's patients held out.
gains = []
for seed in range(10):
    held = holdout(table["node"].to_numpy(), 1 / 3, seed)
    scores = [
        NetworkGaussianMixture(3, graph=graph, random_state=seed)
        .fit(table[~held], nodes="node")
        .score_samples(table[held], nodes="node")
        for graph in ("none", "full")
    ]
    gains.append(pd.Series(scores[1] - scores[0]).groupby(table["node"][held].to_numpy()).mean())
gains = pd.DataFrame(gains)
print("\nGain by listening, nats per held-out patient: median and worst of 10 splits")
print(pd.DataFrame({"median": gains.median(), "worst": gains.min()}).round(2).to_string())

# 3. All patients: what does a hospital rely on?
model = NetworkGaussianMixture(3, graph="full", random_state=0).fit(table, nodes="node")
model.align_components()
print("\n" + model.explain("switzerland"))
print("\nWeights of the levels")
weights = pd.DataFrame(model.levels_.weights, model.nodes_, model.levels_.names)
print(weights.round(2).to_string())

# 4. Three kinds of patients, and who is ill (which the fit was not told)
component = model.predict(table, nodes="node")
print("\nMean of every component, over hospitals")
print(pd.DataFrame(model.means_.mean(0), columns=FEATURES).round(1).to_string())
ill = (patients["target"] > 0).groupby([patients["node"], component])
print("\nPatients with heart disease, by component")
print(ill.mean().unstack().round(2).to_string())
print("\nPatients")
print(ill.size().unstack(fill_value=0).to_string())

# 5. A column that one hospital never measured
swiss = table["node"] == "switzerland"
filled = model.impute(table, nodes="node")
expected = filled.loc[swiss, "chol"].mean()
print(f"\nCholesterol in Switzerland: expected {expected:.0f} mg/dl on average")
known = table["chol"].notna() & (table["node"] == "hungarian")
hidden = table.assign(chol=table["chol"].where(table["node"] != "hungarian"))
again = NetworkGaussianMixture(3, graph="full", random_state=0).fit(hidden, nodes="node")
guess = again.impute(hidden, nodes="node").loc[known, "chol"]
others = table.loc[table["node"] != "hungarian", "chol"].mean()
truth = table.loc[known, "chol"]
score = lambda value: np.sqrt(np.mean((truth - value) ** 2))
print(
    "The same where it can be checked: Hungary's cholesterol hidden from the fit.\n"
    f"Root mean squared error {score(guess):.1f} mg/dl; of the others' mean {score(others):.1f}"
)

# 6. The picture
colours = np.array(["C0", "C1", "C2"])
fig, axes = plt.subplots(1, 4, figsize=(11, 3.2), sharex=True, sharey=True)
for axis, node in zip(axes, model.nodes_, strict=True):
    here = (table["node"] == node).to_numpy()
    sick = (patients["target"] > 0).to_numpy()
    for part, marker in ((here & ~sick, "o"), (here & sick, "x")):
        x, y = table.loc[part, ["thalach", "oldpeak"]].to_numpy().T
        axis.scatter(x, y, s=14, c=colours[component[part]], marker=marker)
    axis.set(title=node, xlabel="maximum heart rate")
axes[0].set_ylabel("ST depression (mm)")
fig.suptitle("components by colour; crosses: patients with heart disease", fontsize=9)
fig.tight_layout()
fig.savefig(picture, dpi=110)

versions = ", ".join(f"{name} {version(name)}" for name in ("fedmixtures", "jax", "numpy"))
print(f"\nMade by examples/tables/heart_disease.py on {date.today()}, {versions}")
