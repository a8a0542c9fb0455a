"""Environments; the only package that uses gymnasium."""

import os

# Box2D environments import pygame, whose greeting would be printed into the screen of a run by every process.
os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
