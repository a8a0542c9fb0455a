"""Environments; the only package that uses gymnasium."""

import os

# As gymnasium does, which the main process need not import: actors take over the environment variables of that process,
# and pygame's greeting would be printed into the screen of a run.
os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "hide")
