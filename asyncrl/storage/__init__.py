"""A run on disk: its directory, options and checkpoints, and checked resumption from them."""
