"""What a node knows: Gaussian mixtures, their densities, statistics and bounds."""
