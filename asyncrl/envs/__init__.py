"""Environments; the only package that uses gymnasium."""
