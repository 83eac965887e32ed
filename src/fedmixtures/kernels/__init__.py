"""Fast forms of the definitions, for CPU and GPU, behind one dispatcher."""
