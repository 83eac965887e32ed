"""Node programs: what fits the `method` slot of the estimator."""
