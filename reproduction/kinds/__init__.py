"""One module per kind of experiment.

Each has `first` (the cells it needs), `make` (the result from their numbers) and `markdown` (its
page); where there is more to compute once the first cells are known, `then`, and where there is
something to draw, `figure`.
"""
