"""Settings for all tests: strict broadcasting, and quick reuse of compiled programs."""

import jax

jax.config.update("jax_numpy_rank_promotion", "raise")
