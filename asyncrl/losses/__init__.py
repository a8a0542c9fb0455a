"""Losses: pure functions over torch tensors, one file per family; axes are checked first."""
