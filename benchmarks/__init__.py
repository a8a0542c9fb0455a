"""Benchmarks and fault injection: one script for each question; see README.md."""
