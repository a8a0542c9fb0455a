"""How a policy acts in an actor: NumPy and numba kernels, never torch, so that actors stay light."""
