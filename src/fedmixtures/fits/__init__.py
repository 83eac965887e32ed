"""Batched fits: rows of many nodes in tiles, and expectation maximisation of any number of them."""
