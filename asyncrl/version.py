"""The version of asyncrl, in one place (the build backend reads this file)."""

__version__ = "0.1.0"
