"""Levels of trust, the default method: `program` reads from top to bottom, a file per step."""

from fedmixtures.methods.trust_then_pool.program import TrustThenPool

__all__ = ["TrustThenPool"]
