"""Fixture: Atari games in gymnasium's registry, only for the tests that request it."""

from __future__ import annotations

from collections.abc import Iterator

import gymnasium
import pytest


@pytest.fixture(scope="module")
def atari_games() -> Iterator[None]:
    """Register the games, whether ale-py was imported before or not; skip if it is not installed."""
    before = dict(gymnasium.registry)
    ale_py = pytest.importorskip("ale_py")
    pytest.importorskip("cv2")
    if "ALE/Pong-v5" not in gymnasium.registry:
        ale_py.register_v5_envs()
    yield
    for name in set(gymnasium.registry) - set(before):
        del gymnasium.registry[name]
