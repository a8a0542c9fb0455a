"""A run on disk: its directory, options and checkpoints, and the checked way to go on from them."""
