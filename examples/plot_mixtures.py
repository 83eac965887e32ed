"""
How far are two mixtures?
=========================

The three discrepancies on the same pair: one mixture stays, the other moves away. Euclidean and KL
grow without limit, MMD levels off. That is why a wrong edge hurts least with MMD.
"""

import matplotlib.pyplot as plt
import numpy as np

from fedmixtures import KL, MMD, Euclidean, Mixture

here = Mixture([0.5, 0.5], [[0.0, 0.0], [3.0, 0.0]], [np.eye(2), np.eye(2)])


def moved(distance):
    """The same mixture, shifted."""
    return Mixture(here.weights, here.means + [0.0, distance], here.covariances)


distances = np.linspace(0, 8, 17)
for discrepancy in (MMD(), KL(n_samples=2000), Euclidean()):
    values = np.array([discrepancy.between(here, moved(s)) for s in distances])
    plt.plot(distances, values / values[4], label=type(discrepancy).__name__)
plt.yscale("symlog", linthresh=1)
plt.xlabel("shift")
plt.ylabel("discrepancy, relative to its value at shift 2")
plt.legend()
plt.show()
