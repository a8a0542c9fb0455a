"""The environment's state in mixers and central critics: what it is worth, normalised inputs, and the option."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from several_agents import Hidden, WithState
from test_value_decomposition import random_batch

from asyncrl import MADDPG, MAPPO, PPO, QMIX, VDN, Trainer
from asyncrl.algorithms.central_state import resolved, state_values
from asyncrl.algorithms.mappo_update import CentralCritic, JointRollout
from asyncrl.algorithms.rollout import Part
from asyncrl.config import TrainerConfig
from asyncrl.envs.agents import AgentsEnv
from asyncrl.envs.checks import spec_of
from asyncrl.errors import EnvironmentRaised, SpacesDoNotFit
from asyncrl.interfaces import Agent, DiscreteAction, EnvSpec, JointBatch, Segment
from asyncrl.learning.ring_sizes import ring_layout

WITHOUT = EnvSpec("team", (4,), "float32", DiscreteAction(3), agents=tuple(map(Agent, "abc")))
SPEC = dataclasses.replace(WITHOUT, state_values=2)


# --- the option ---


@pytest.mark.parametrize("record", [QMIX, MAPPO, MADDPG])
def test_auto_takes_the_state_where_there_is_one(record: Any) -> None:
    config = TrainerConfig(env="team", algo=record.name, num_actors=1)
    for spec, chosen, values in ((SPEC, "state", 2), (WITHOUT, "observations", 0)):
        algorithm = record().for_run(config, spec)
        assert algorithm.central_state == chosen, "files show what was chosen"
        assert state_values(algorithm, spec) == state_values(record(), spec) == values
        assert ring_layout(config, algorithm, spec).state_values == values
    told = record(central_state="observations").for_run(config, SPEC)
    assert state_values(told, SPEC) == 0 and ring_layout(config, told, SPEC).state_values == 0
    with pytest.raises(SpacesDoNotFit, match="central_state is state, and team has no state") as caught:
        ring_layout(config, record(central_state="state").for_run(config, WITHOUT), WITHOUT)
    assert "central_state='observations'" in caught.value.fix


@pytest.mark.parametrize("record", [VDN, PPO])
def test_others_keep_no_state(record: Any) -> None:
    config = TrainerConfig(env="team", algo=record.name, num_actors=1)
    assert resolved(record(), SPEC) == "observations"
    layout = ring_layout(config, record().for_run(config, SPEC), SPEC)
    assert layout.state_values == 0 and not any(a.name == "global_state" for a in layout.arrays())


# --- what the networks see ---


def with_states(batch: JointBatch, seed: int) -> JointBatch:
    states = np.random.default_rng(seed).normal(3, 2, (2, batch.size, 2)).astype(np.float32)
    return dataclasses.replace(batch, state=states[0], next_state=states[1])


@pytest.mark.parametrize("normalized", [False, True])
def test_the_mixer_sees_the_state_and_nothing_else(normalized: bool) -> None:
    config = QMIX(hidden_sizes=(8,), huber_delta=None, bound_targets=False, normalize_observations=normalized)
    core = config.make_updater(SPEC, "cpu", 0)
    batch = with_states(random_batch(SPEC, 8, 0), 1)
    core.update(batch)
    state, next_state = batch.state.astype(np.float64), batch.next_state.astype(np.float64)
    if normalized:  # by the moments of the batch's states alone
        mean, scale = state.mean(axis=0), 1 / np.sqrt(state.var(axis=0) + 1e-8)
        state, next_state = (state - mean) * scale, (next_state - mean) * scale
    seen = core._buffers.batch
    np.testing.assert_allclose(seen.state, state, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(seen.next_state, next_state, rtol=1e-4, atol=1e-5)
    first = core._mixer.modules[0].w_1[0]
    assert first.in_features == 2, "not 3 x 4 observed values"


def segment_of(streams: int, length: int, states: np.ndarray) -> Segment:
    """A segment whose observations tell stream and row, with these states `[streams / 3, length + 1, 2]`."""
    rows = np.arange(streams * (length + 1), dtype=np.float32).reshape(streams, length + 1, 1)
    obs = np.repeat(rows, 4, axis=2)
    flat = np.zeros((streams, length), np.float32)
    return Segment(
        ring=0,
        first=0,
        obs=obs[:, :-1],
        last_obs=obs[:, -1],
        action=np.zeros((streams, length), np.int64),
        reward=flat,
        flags=np.zeros((streams, length), np.uint8),
        version=np.zeros(length, np.int64),
        policy_updates=np.zeros(length, np.int64),
        extras={"log_prob": flat},
        weight=np.ones(length, np.float32),
        staleness=np.zeros(length, np.int64),
        num_agents=3,
        state=states[:, :-1],
        last_state=states[:, -1],
    )


def test_the_critic_sees_the_state_of_each_row_and_of_the_one_after_a_segment() -> None:
    """Two segments of two environments: values by hand, of each row's state, beside those of the rollout."""
    config = MAPPO(hidden_sizes=(8,), segment_length=3)
    nets = CentralCritic(config, SPEC, "cpu", 0)
    states = np.random.default_rng(0).normal(size=(2, 2, 4, 2)).astype(np.float32)
    rollout = JointRollout(nets, 12, 3, config.rollout_columns)
    with torch.no_grad():
        rollout.stage([segment_of(6, 3, own) for own in states])
        value, last_value, _ = rollout.evaluate(log_prob=True)
        wanted = nets._value.make_pass(torch.from_numpy(states.reshape(-1, 2))).forward().numpy()
    wanted = np.repeat(wanted.reshape(4, 4), 3, axis=0)  # all agents of an environment alike
    np.testing.assert_allclose(value, wanted[:, :-1], rtol=1e-5)
    np.testing.assert_allclose(last_value, wanted[:, -1], rtol=1e-5)
    size = 5
    batch = rollout.minibatch(size * 3)
    items = np.array([3, 0, 7, 11, 4])
    for part in config.divide(rollout, (0,)):
        assert len(part.rows) % 3 == 0
    rows = rollout.items[items].reshape(-1)
    with torch.no_grad():
        batch.forward(rollout, Part(rows, slice(15), 15), torch.from_numpy(rows))
    found = batch.value.numpy().reshape(size, 3)[:, 0]
    np.testing.assert_allclose(found, wanted[::3, :-1].reshape(-1)[items], rtol=1e-5)


# --- what it is worth ---


OFF_POLICY: dict[str, Any] = {
    "hidden_sizes": (16,),
    "gamma": 0.5,
    "learning_starts": 100,
    "batch_size": 32,
    "discipline": "lockstep",
    "learning_rate": 1e-2,
    "n_step": 1,
}


ON_POLICY = MAPPO(gamma=0.5, segment_length=32, learning_rate=3e-3, discipline="lockstep")


@pytest.mark.parametrize(
    ("algorithm", "steps"),
    [
        (QMIX(**OFF_POLICY, exploration_steps=100), 500),
        (MADDPG(**OFF_POLICY), 500),
        (ON_POLICY, 1_500),
        (dataclasses.replace(ON_POLICY, inference="server", normalize_observations=True), 1_500),
    ],
)
def test_the_state_explains_what_no_observation_shows(algorithm: Any, steps: int) -> None:
    """`Hidden`: values by the state are right, by observations alone no better than their mean, 0.

    By observations the error of a step is +-1 or more, and the Huber or squared loss 0.5 (MADDPG: of half the reward).
    """
    found = {}
    for seen in ("state", "observations"):
        options: dict[str, Any] = {"num_actors": 1, "envs_per_actor": 8, "seed": 1, "http": "off"}
        told = dataclasses.replace(algorithm, central_state=seen)
        trainer = Trainer(Hidden, told, eval_interval_steps=None, target_eval_episodes=1, **options)
        trainer.learn(total_steps=steps)
        last = trainer.snapshot()
        assert last is not None
        found[seen] = {name: float(value or 0) for name, value in last.metrics.items()}
    if algorithm.name == "mappo":
        assert found["state"]["train/explained_variance"] > 0.95
        assert found["observations"]["train/explained_variance"] < 0.2
    else:
        assert found["state"]["train/loss"] < 0.05 * found["observations"]["train/loss"]
        assert found["observations"]["train/loss"] > 0.08


def test_errors_name_the_fix() -> None:
    class NoState(WithState):
        def state(self) -> Any:
            raise NotImplementedError

    class Longer(WithState):
        def state(self) -> Any:
            return np.zeros(4)

    class Endless(WithState):
        def state(self) -> Any:
            return np.array([0.0, np.inf, 0.0])

    for kind, text in ((NoState, "state it is not implemented"), (Longer, "off its space"), (Endless, "NaN")):
        env = AgentsEnv("odd", kind())
        assert spec_of("odd", env).state_values == 3
        env.reset(seed=0)
        with pytest.raises(Exception, match=text):
            env.state()


def test_the_error_of_a_state_that_raises_names_the_option_that_does_without() -> None:
    """PettingZoo's multiwalker: an episode that ends destroys the bodies that its `state()` looks at."""

    class Destroyed(WithState):
        def state(self) -> Any:
            if not self.agents:
                raise AttributeError("'NoneType' object has no attribute 'position'")
            return super().state()

    options: dict[str, Any] = {"num_actors": 1, "envs_per_actor": 2, "seed": 1, "http": "off"}
    trainer = Trainer(Destroyed, dataclasses.replace(ON_POLICY, central_state="auto"), **options)
    with pytest.raises(EnvironmentRaised, match="raised AttributeError in state") as raised:
        trainer.learn(total_steps=500)
    assert "central_state='observations' learns without it" in raised.value.fix
