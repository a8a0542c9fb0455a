"""One run on its event loop: memory, parts, evaluation, reports, checkpoints and end."""
