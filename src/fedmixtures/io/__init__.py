"""Files: models, checkpoints, tables."""
