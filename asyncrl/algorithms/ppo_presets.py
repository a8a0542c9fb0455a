"""Tuned settings of PPO for a few environments, with the figures they were chosen by."""

from __future__ import annotations

from collections.abc import Mapping

from asyncrl.algorithms.presets import Preset

PRESETS: Mapping[str, Preset] = {}
