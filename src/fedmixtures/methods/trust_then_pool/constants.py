"""Numbers of the default method that are no options."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Constants:
    """What nobody needs to choose; the options are those of `TrustThenPool`."""

    # Step 1, own
    short_steps: int = 5
    """EM steps of an own fit from every fresh start."""
    fit_steps: int = 20
    """EM steps of an own fit from the best of them."""

    # Steps 3 and 6, everyone and group
    leaders: int = 3
    """Members whose neighbourhoods give a start."""
    tries: int = 3
    """k-means++ starts that a leader compares at home."""
    start_steps: int = 20
    """EM steps of what a leader clusters."""
    less: float = 0.5
    """Rows that a total may have less than the node itself, by rounding."""
    same_total: float = 3e-7
    """Totals of log-likelihoods that differ by less (relatively) are equal: less than `SAME_FIT` of
    fits, as their rounding is less."""
    few: float = 100.0
    """Sums of more rows have a covariance for sure."""

    for_a_ridge: float = 0.01
    """Nats per row by which less on the diagonal of covariances must be better."""
    least_ridge: dict[str, float] = field(
        default_factory=lambda: {"float64": 1e-9, "float32": 1e-5}
    )
    """What can be added to covariances at least, in squared standard deviations."""

    # Steps 4 and 7, personal and near
    personal_steps: int = 8
    """EM steps from everyone's mixture to the personal one."""
    near_steps: int = 3
    """EM steps from the own mixture to that of own rows and trusted releases."""
    nearest: int = 20
    """Trusted neighbours whose releases these steps have at most: those that gain most."""

    # Step 5, listen
    most_times: float = 10.0
    """A neighbour's release counts at most this many times the own rows."""
    margin: float = 4.0
    """Standard errors by which a release that lost components may be worse than what there is."""
    least_gain: float = 1e-3
    """Of listening to a smaller neighbour that wants it, in nats."""
    vote_rounds: int = 16
    """Rounds of label propagation."""
    many: int = 500
    """Nodes of a network from which on chance edges may join whole groups."""
    alike: float = 0.8
    """Cosine between the numbers of two neighbours, below which they are of two groups."""

    # Step 8, weigh
    shrink: float = 10.0
    """Rows that the network's weights count for at a node."""
    sure: float = 30.0
    """Rows that the mean evidence of the network counts for where the weights begin."""
    least_rows: float = 0.02
    """Rows that every level has for sure."""
    least_weight: float = 1e-4
    """Of a level in the whole network."""
    most_growth: float = 2.0
    """Of a level's weight in the network, from one sum to the next."""
    sums: int = 8
    """Rounds of the network's weights."""
    few_steps: int = 10
    """EM steps of a node's own weights between two sums."""
    steps: int = 50
    """EM steps of a node's own weights at the end."""
    lowest: float = -1e3
    """What a log-density that is no number, or less than this, counts as."""


C = Constants()
