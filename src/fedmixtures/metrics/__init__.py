"""How good a fit is: likelihood, partition, centroids, and summaries over seeds."""

from fedmixtures.metrics.centroids import centroid_error, node_centroid_errors
from fedmixtures.metrics.likelihood import mean_over_nodes, node_means
from fedmixtures.metrics.partition import (
    effective_components,
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
