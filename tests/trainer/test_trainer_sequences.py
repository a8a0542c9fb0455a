"""R2D2 through real actors: both disciplines, pixels, staleness, a killed actor."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from asyncrl import R2D2, Snapshot, Trainer

SMALL: dict[str, Any] = {
    "hidden_sizes": (16,),
    "recurrent_size": 8,
    "sequence_length": 6,
    "burn_in": 3,
    "batch_size": 8,
    "learning_starts": 200,
    "samples_per_insert": 4.0,
}


def trained(env: str, steps: int, **options: Any) -> Any:
    algorithm = R2D2(**{**SMALL, **options})
    with Trainer(
        env, algorithm, num_actors=2, envs_per_actor=2, seed=1, http="off", eval_episodes=1
    ) as trainer:
        return trainer.learn(total_steps=steps)


@pytest.mark.parametrize("discipline", ["relaxed", "lockstep"])
def test_samples_are_counted_in_trained_rows(discipline: str) -> None:
    result = trained("CartPole-v1", 2_000, discipline=discipline)
    steps, updates = result.summary["env_steps"], result.summary["updates"]
    assert steps >= 2_000
    assert 0.9 < updates * 8 * 6 / (4.0 * (steps - 200)) < 1.1
    assert 3.5 < result.summary["samples_per_insert"]["achieved"] < 4.5


@pytest.mark.filterwarnings("ignore::asyncrl.errors.SamplesTooStale")
def test_sequences_that_are_too_stale_are_given_up() -> None:
    result = trained("CartPole-v1", 2_000, max_staleness=20, publish_interval=1, staleness_correction="power")
    assert result.summary["updates"] > 50
    assert result.summary["staleness"]["max"] <= 20 and result.summary["staleness"]["discarded_fraction"] > 0


def test_a_convolution_before_the_cell() -> None:
    result = trained("asyncrl/Catch-v0", 600, network="small", frame_stack=2)
    assert result.summary["updates"] > 20
    obs, _ = result.policy.make_env().reset(seed=0)
    _, state = result.policy.predict(obs, episode_start=True)
    assert state.shape == (16,)


@pytest.mark.parametrize("discipline", ["relaxed", "lockstep"])
def test_a_killed_actor_costs_its_episodes_and_no_more(discipline: str) -> None:
    """Sequences that hold the end of its life and the beginning of the next one are trained on."""
    algorithm = R2D2(**SMALL, discipline=discipline)
    run: dict[str, Any] = {"num_actors": 2, "envs_per_actor": 2, "seed": 1, "http": "off", "eval_episodes": 1}
    killed: list[int] = []

    def kill(snapshot: Snapshot) -> None:
        pid = snapshot.actors[0].pid if snapshot.actors else None
        if not killed and snapshot.env_steps > 500 and pid:
            killed.append(pid)
            os.kill(pid, signal.SIGKILL)

    with Trainer("CartPole-v1", algorithm, report_interval_seconds=0.02, **run) as trainer:
        result = trainer.learn(total_steps=6_000, on_snapshot=kill)
    assert killed and result.summary["actor_restarts"] == 1
    assert result.summary["env_steps"] >= 6_000 and result.summary["updates"] > 100
