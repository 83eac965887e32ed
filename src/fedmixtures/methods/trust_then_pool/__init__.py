"""Trust-then-Pool: nodes decide from their own rows whom to pool with, then pool exactly."""

from fedmixtures.methods.trust_then_pool.program import TrustThenPool

__all__ = ["TrustThenPool"]
