"""How good a fit is: likelihood, partition, centroids, and summaries over seeds."""

from fedmixtures.metrics.per_node import (
    centroid_error,
    effective_components,
    mean_over_nodes,
    node_centroid_errors,
    node_means,
    node_mutual_information,
    normalized_mutual_information,
)
from fedmixtures.metrics.summary import Interval, median_interval, paired_difference

__all__ = [
    "Interval",
    "centroid_error",
    "effective_components",
    "mean_over_nodes",
    "median_interval",
    "node_centroid_errors",
    "node_means",
    "node_mutual_information",
    "normalized_mutual_information",
    "paired_difference",
]
