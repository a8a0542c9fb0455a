"""Version of asyncrl; the build backend reads this file."""

__version__ = "0.1.0"
