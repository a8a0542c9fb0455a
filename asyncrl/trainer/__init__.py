"""Public objects: the trainer, whose run has its own thread or several processes, and its result."""
