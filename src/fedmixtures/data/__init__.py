"""Where the points come from: synthetic data with a truth, splits over nodes, the digits."""

from fedmixtures.data.node_data import rows_by_node
from fedmixtures.data.scenarios import (
    Scenario,
    digits,
    digits_scenario,
    dirichlet_split,
    homogeneous,
    shifted_blocks,
)
from fedmixtures.data.splits import holdout

__all__ = [
    "Scenario",
    "digits",
    "digits_scenario",
    "dirichlet_split",
    "holdout",
    "homogeneous",
    "rows_by_node",
    "shifted_blocks",
]
