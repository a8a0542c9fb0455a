"""Memory of a replay of images: rings hold single frames of bytes for any `frame_stack`."""

from __future__ import annotations

import numpy as np
import pytest

from asyncrl import DQN, PPO
from asyncrl.config import TrainerConfig
from asyncrl.interfaces import DiscreteAction, EnvSpec
from asyncrl.learning.ring_sizes import replay_layout, segment_layout
from asyncrl.shm.segment import bytes_needed

ATARI = EnvSpec("atari", (84, 84), "uint8", DiscreteAction(6))


@pytest.mark.parametrize("frame_stack", [1, 4])
def test_a_million_steps_of_atari_take_seven_gigabytes(
    frame_stack: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("asyncrl.learning.ring_sizes.available_bytes", lambda: 64 << 30)
    config = TrainerConfig(env="atari", algo="dqn", num_actors=2, envs_per_actor=8)
    layout = replay_layout(config, DQN(frame_stack=frame_stack, replay_capacity=2**20), ATARI)
    needed = 2 * bytes_needed(layout.arrays())
    assert layout.num_slots * 16 == 2**20
    assert 84 * 84 * 2**20 < needed < 1.01 * 84 * 84 * 2**20


def test_rings_hold_single_frames() -> None:
    config = TrainerConfig(env="atari", algo="dqn", num_actors=1, envs_per_actor=2)
    layout = replay_layout(config, DQN(frame_stack=4, replay_capacity=512, learning_starts=100), ATARI)
    (obs,) = (array for array in layout.arrays() if array.name == "obs")
    assert np.dtype(obs.dtype) == np.uint8 and obs.shape == (2, 256, 84, 84)
    one = segment_layout(config, PPO(segment_length=128), ATARI)
    assert segment_layout(config, PPO(frame_stack=4, segment_length=128), ATARI) == one
