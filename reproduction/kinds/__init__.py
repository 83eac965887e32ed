"""One module per kind of experiment: which cells it needs, and what is made of them."""
