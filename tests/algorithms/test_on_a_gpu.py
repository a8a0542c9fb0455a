"""Every algorithm's updates and whole runs on a real GPU; skipped without one.

`test_on_a_labelled_gpu` says more of each update (waits, mixed devices) and runs everywhere; a real GPU adds what it
does not model: kernels of its own, asynchrony, graphs, pinned memory.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from segment_rig import batch_of, iterate
from test_contract import filled_batch, weights_of
from test_on_a_labelled_gpu import CASES, algorithm_of
from test_recurrent_update import batch_of as recurrent_batch_of

from asyncrl import DQN, PPO, R2D2, SAC, Trainer, load
from asyncrl.interfaces import EnvSpec

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
UPDATES = 6
"""More than the three calls before a CUDA graph is captured, and the one that captures it."""


def draw_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on draw the numbers of every generator on the CPU, from one seed: a GPU's generator has others."""
    own: dict[int, tuple[Any, torch.Generator]] = {}
    for name in ("normal_", "uniform_"):
        fill = getattr(torch.Tensor, name)

        def drawn(values: torch.Tensor, *args: Any, generator: Any = None, fill: Any = fill) -> torch.Tensor:
            _, host = own.setdefault(id(generator), (generator, torch.Generator().manual_seed(0)))
            return values.copy_(fill(torch.empty(values.shape), *args, generator=host))

        monkeypatch.setattr(torch.Tensor, name, drawn)


@pytest.mark.parametrize(("name", "setting"), CASES)
def test_updates_are_those_of_the_cpu(name: str, setting: str, monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm, spec = algorithm_of(name, setting)
    on_host, on_device = (algorithm.make_updater(spec, device, 3) for device in ("cpu", "cuda"))
    assert on_device.vector.parameters.is_cuda
    begun = weights_of(on_host).copy()
    np.testing.assert_allclose(weights_of(on_device), begun, rtol=1e-5, atol=1e-7)
    draw_on_the_host(monkeypatch)
    if algorithm.update_loop == "segments":
        make = batch_of if algorithm.cell is None else recurrent_batch_of
        for number in range(3):
            segments = make(algorithm, spec, on_host, number)
            iterate(on_host, segments)
            iterate(on_device, segments)
    else:
        update_both(algorithm, spec, on_host, on_device, rough="bfloat16" in setting)
    host, device = weights_of(on_host), weights_of(on_device)
    # Convolutions of cuDNN and products of `medium` and `bfloat16` round as the processor's do not.
    tolerance = 0.2 if setting.endswith(("bfloat16", "medium")) else 0.05
    assert 0 < np.linalg.norm(device - host) < tolerance * np.linalg.norm(host - begun)
    assert on_device.metrics().keys() == on_host.metrics().keys()
    copy = algorithm.make_updater(spec, "cuda", 4)
    copy.load_state_dict(on_device.state_dict())
    assert np.array_equal(weights_of(copy), device)


def update_both(algorithm: Any, spec: EnvSpec, on_host: Any, on_device: Any, rough: bool) -> None:
    for number in range(UPDATES):
        batch = filled_batch(algorithm, algorithm.stacked_spec(spec), number)
        expected = on_host.update(batch).priorities
        expected = None if expected is None else expected.copy()
        found = on_device.update(batch).priorities
        assert (found is None) == (expected is None)
        if expected is not None:
            np.testing.assert_allclose(
                found, expected, rtol=0.1 if rough else 0.01, atol=0.05 if rough else 5e-3
            )


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
    ("env", "algorithm"),
    [
        (
            "asyncrl/Catch-v0",
            DQN(**REPLAY, replay_device="cuda", inference="server", frame_stack=2, n_step=3),
        ),
        ("asyncrl/Catch-v0", DQN(**REPLAY, replay_device="cuda", cuda_graph=True, discipline="relaxed")),
        ("asyncrl/Catch-v0", DQN(**REPLAY, replay_device="auto", discipline="lockstep", prioritized=False)),
        (
            "asyncrl/Catch-v0",
            R2D2(**REPLAY | {"batch_size": 2}, sequence_length=8, burn_in=4, recurrent_size=8),
        ),
        ("asyncrl/Catch-v0", PPO(hidden_sizes=(16,), segment_length=16)),
        ("Pendulum-v1", SAC(**REPLAY)),
    ],
    ids=["mirror and server", "graph", "lockstep", "recurrent", "ppo", "sac"],
)
def test_a_run_trains_and_its_policy_acts_on_the_cpu(env: str, algorithm: Any, tmp_path: Any) -> None:
    result = Trainer(env, algorithm, run_dir=tmp_path / "run", **SMALL).learn()
    assert result.summary["updates"] >= 10 and result.summary["env_steps"] >= 300
    loaded = load(tmp_path / "run")
    spec = loaded.spec.stacked(getattr(algorithm, "frame_stack", 1))
    obs = np.ones((4, *spec.observation_shape), spec.observation_dtype)
    here, there = result.policy.predict(obs)[0], loaded.predict(obs)[0]
    np.testing.assert_allclose(here, there, atol=1e-3)
