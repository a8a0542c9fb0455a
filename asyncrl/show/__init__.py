"""Metrics of a run and their display: terminal, notebook card, files."""
