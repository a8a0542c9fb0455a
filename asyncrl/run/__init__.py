"""One run: its options, parts, evaluation, checkpoints and end."""
