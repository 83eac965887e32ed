"""What may run between silos: methods by the types of messages that they say they send.

A method crosses if both ends have it by name (`methods/registry.py`) and everything in its `sends`
has a rule at the release gate. What it does not say it sends, it cannot send.
"""

from __future__ import annotations

from collections.abc import Mapping

from fedmixtures import _checks
from fedmixtures.federation.job import JobError
from fedmixtures.federation.node.private_pool import NoisySum
from fedmixtures.federation.node.summing import NoisyShare, SumShare
from fedmixtures.federation.node.whereabouts import Place
from fedmixtures.federation.wire.message import IntegerMessage, ModelMessage
from fedmixtures.methods.base import Method
from fedmixtures.methods.protocol import Connect, PerNeighbour, Release, Sum, Walk, Whereabouts
from fedmixtures.mixture.mixture import Mixture

LEAVES: Mapping[type, type] = {
    Mixture: ModelMessage,
    Release: ModelMessage,
    PerNeighbour: IntegerMessage,
    Connect: IntegerMessage,
    Walk: IntegerMessage,
    Sum: SumShare,
    NoisySum: NoisyShare,
    Whereabouts: Place,
}
"""What methods send, and as what it comes to the release gate, which has a rule for that."""


def check_crosses(method: Method) -> None:
    """Refuse a method that sends anything without a rule at the gate, before anything starts."""
    name = type(method).__name__
    if not method.sends:
        raise JobError(
            f"{name} does not run between silos: it does not say what its nodes send (`sends`)"
        )
    if unknown := [kind.__name__ for kind in method.sends if kind not in LEAVES]:
        known = _checks.listed(kind.__name__ for kind in LEAVES)
        raise JobError(
            f"{name} does not run between silos: it sends {_checks.listed(unknown)}, for which the "
            f"release gate has no rule. It has rules for {known}"
        )
