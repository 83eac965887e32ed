"""How far two mixtures are."""
