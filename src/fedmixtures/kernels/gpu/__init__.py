"""Kernels for a GPU (Pallas), a thread per node; each is tried before it is relied on."""
