"""Where nodes, rows and neighbours stand in arrays."""
