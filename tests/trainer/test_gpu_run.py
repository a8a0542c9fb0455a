"""Whole runs on a labelled GPU: learner, mirror and inference server in threads of their own, actors on the CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from labelled_device import LabelledDevice

from asyncrl import DQN, R2D2, Trainer
from asyncrl.learning import mirror

SMALL: dict[str, Any] = {
    "num_actors": 1,
    "envs_per_actor": 2,
    "http": "off",
    "seed": 1,
    "device": "cuda",
    "total_steps": 300,
    "target_eval_episodes": 1,
}
REPLAY: dict[str, Any] = {
    "hidden_sizes": (16,),
    "batch_size": 8,
    "learning_starts": 100,
    "replay_capacity": 512,
    "samples_per_insert": 1.0,
}


@pytest.mark.parametrize(
    "algorithm",
    [
        DQN(**REPLAY, replay_device="cuda", inference="server", frame_stack=2, n_step=3),
        DQN(**REPLAY, replay_device="auto", discipline="lockstep", prioritized=False),
        R2D2(**REPLAY | {"batch_size": 2}, sequence_length=8, burn_in=4, recurrent_size=8),
    ],
    ids=["mirror and server", "lockstep", "recurrent"],
)
def test_a_run_on_a_gpu_trains_and_gives_everything_back(
    algorithm: Any, labelled_device: LabelledDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    registered: list[int] = []
    pin = mirror.ObservationMirror._pin

    def counted(self: mirror.ObservationMirror, rings: Any) -> None:
        pin(self, rings)
        registered.append(len(labelled_device.registered))

    monkeypatch.setattr(mirror.ObservationMirror, "_pin", counted)
    result = Trainer("asyncrl/Catch-v0", algorithm, **SMALL).learn()
    assert result.summary["updates"] > 10 and result.summary["env_steps"] >= 300
    assert registered == ([1] if algorithm.replay_device != "cpu" else [])
    assert not labelled_device.registered, "memory of the rings is registered after the run"
    torch.ones(1, device="cuda")
