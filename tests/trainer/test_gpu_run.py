"""Whole runs on a labelled GPU and on a real one: learner, mirror and inference server in threads of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from labelled_device import LabelledDevice

from asyncrl import DQN, PPO, R2D2, SAC, Trainer, load
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


ALGORITHMS = {
    "mirror and server": DQN(**REPLAY, replay_device="cuda", inference="server", frame_stack=2, n_step=3),
    "lockstep": DQN(**REPLAY, replay_device="auto", discipline="lockstep", prioritized=False),
    "recurrent": R2D2(**REPLAY | {"batch_size": 2}, sequence_length=8, burn_in=4, recurrent_size=8),
}
ON_A_GPU = ALGORITHMS | {
    "graph": DQN(**REPLAY, replay_device="cuda", cuda_graph=True, discipline="relaxed"),
    "ppo": PPO(hidden_sizes=(16,), segment_length=16),
    "sac": SAC(**REPLAY),
}


@pytest.mark.parametrize("algorithm", ALGORITHMS.values(), ids=ALGORITHMS)
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


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("algorithm", ON_A_GPU.values(), ids=ON_A_GPU)
def test_a_run_trains_and_its_policy_acts_on_the_cpu(algorithm: Any, tmp_path: Path) -> None:
    env = "Pendulum-v1" if algorithm.name == "sac" else "asyncrl/Catch-v0"
    result = Trainer(env, algorithm, run_dir=tmp_path / "run", **SMALL).learn()
    assert result.summary["updates"] >= 10 and result.summary["env_steps"] >= 300
    loaded = load(tmp_path / "run")
    spec = loaded.spec.stacked(algorithm.frame_stack)
    obs = np.ones((4, *spec.observation_shape), spec.observation_dtype)
    np.testing.assert_allclose(result.policy.predict(obs)[0], loaded.predict(obs)[0], atol=1e-3)
