"""What a run shows: metrics, terminal, notebook card, files."""
