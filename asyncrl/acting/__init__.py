"""Policies in actor processes: NumPy and numba kernels; torch only for a network of the user's own."""
