"""Memory of a replay: rings hold single frames of bytes for any `frame_stack`; the learner's own is counted."""

from __future__ import annotations

import re

import numpy as np
import pytest

from asyncrl import DQN, PPO
from asyncrl.config import TrainerConfig
from asyncrl.errors import ReplayTooLarge
from asyncrl.interfaces import DiscreteAction, EnvSpec
from asyncrl.learning.ring_sizes import replay_layout, segment_layout
from asyncrl.replay import SumTree
from asyncrl.replay.tables import RETURN_BYTES
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


@pytest.mark.parametrize("envs", [1, 9, 16])
def test_priorities_and_returns_have_to_fit_in_memory_too(envs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = EnvSpec("vector", (4,), "float32", DiscreteAction(2))
    config = TrainerConfig(env="vector", algo="dqn", num_actors=2, envs_per_actor=envs)
    record = DQN(replay_capacity=2**16)
    layout = replay_layout(config, record, spec)
    tree = SumTree((2 * layout.num_slots) << (envs - 1).bit_length())
    own = tree.leaves.nbytes + tree.nodes.nbytes + RETURN_BYTES * tree.leaves.size
    needed = 2 * bytes_needed(layout.arrays()) + own
    assert own > 0.4 * (needed - own)
    monkeypatch.setattr("asyncrl.learning.ring_sizes.available_bytes", lambda: needed - 1)
    with pytest.raises(ReplayTooLarge) as raised:
        replay_layout(config, record, spec)
    assert raised.value.fix is not None
    fits = int(re.sub("[^0-9]", "", raised.value.fix))
    assert 2**14 < fits < 2**16
    replay_layout(config, DQN(replay_capacity=fits, learning_starts=100), spec)
    monkeypatch.setattr("asyncrl.learning.ring_sizes.available_bytes", lambda: int(1.02 * needed))
    assert replay_layout(config, record, spec) == layout
