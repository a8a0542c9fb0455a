"""What the parts of asyncrl cost and keep: processes, memory, kernels, updates, the page."""
