"""The environments: the only door to gymnasium."""
