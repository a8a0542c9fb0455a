"""Stacks, rewards and ends of episodes of Atari games equal gymnasium's row by row; 100,000 steps by the benchmark."""

from __future__ import annotations

import importlib
from typing import Any

import gymnasium
import numpy as np
import pytest


@pytest.fixture
def script(atari_games: None, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The benchmark, which needs ale-py, with short games."""
    made = importlib.import_module("benchmarks.systems.atari_boundaries")
    monkeypatch.setattr(made, "MOST_FRAMES", 500)
    return made


@pytest.mark.parametrize(
    ("game", "kind", "replay"),
    [
        ("Breakout", "lives", True),
        ("Qbert", "restarts", False),
        ("Pong", "games", True),
        ("Seaquest", "vector", False),
    ],
)
def test_rows_are_gymnasiums(script: Any, game: str, kind: str, replay: bool) -> None:
    count = script.compare(game, kind, 800, replay)
    assert count["rows"] == 800 and count["stacks cut"] > 600
    ends = count["terminated"] + count["truncated"]
    assert 3 < count["resets"] <= ends and count["truncated" if game == "Pong" else "terminated"] > 2


def test_a_difference_is_seen(script: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asyncrl.envs.atari.sign", lambda reward: float(reward) * 2)
    with pytest.raises(AssertionError, match="Breakout lives: row"):
        script.compare("Breakout", "lives", 800, True)
    monkeypatch.setattr(
        script,
        "FrameStackObservation",
        lambda env, k: Shifted(gymnasium.wrappers.FrameStackObservation(env, k)),
    )
    with pytest.raises(AssertionError, match="Pong games: stacks of row 0"):
        script.compare("Pong", "games", 800, True)


class Shifted(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Environment with stacks in the wrong order."""

    def observation(self, observation: Any) -> Any:
        """Newest frame first, and a different first frame."""
        return np.ascontiguousarray(observation[::-1]) ^ 1
