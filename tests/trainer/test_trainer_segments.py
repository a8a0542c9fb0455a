"""On-policy training end to end: real actors, real rings, segments in order of arrival, three disciplines."""

import asyncio
import fcntl
import os
import signal
import tempfile
import time

import gymnasium
import numpy as np
import pytest
from waiting import PATIENCE_SECONDS, wait_until

from asyncrl import A2C, IMPALA, PPO, PQN, Trainer, errors

SMALL = {"envs_per_actor": 4, "num_actors": 2, "http": "off", "target_eval_episodes": 5}


def small(**changes):
    fields = {"segment_length": 32, "minibatch_size": 64, "epochs": 3, "hidden_sizes": (16, 16)}
    fields["learning_rate"] = 3e-3
    return PPO(**{**fields, **changes})


@pytest.mark.parametrize("discipline", ["relaxed", "lockstep", "synchronous"])
def test_every_step_is_trained_on_as_often_as_the_epochs_say(discipline):
    result = Trainer("CartPole-v1", small(discipline=discipline, epochs=3), seed=1, **SMALL).learn(
        total_steps=4_000
    )
    summary = result.summary
    assert result.stop_reason == "total_steps"
    assert 4_000 <= summary["env_steps"] < 4_000 + 2 * 32 * 4 + 2 * 4
    assert summary["samples_per_insert"]["target"] == 3.0
    # Relaxed, a segment of an actor that the machine held up for more than 4 versions is dropped; the last iteration,
    # of two segments, may then lack its partner.
    discarded = summary["staleness"]["discarded_fraction"]
    assert discarded == 0.0 or discipline == "relaxed"
    unpaired = 32 * 4 / summary["env_steps"] if discarded else 0.0
    achieved = summary["samples_per_insert"]["achieved"] / 3.0
    assert 1.0 - discarded - unpaired - 0.02 < achieved < 1.02 - discarded
    updates = 3 * (
        2 * 32 * 4 // 64
    )  # of an iteration, which is one version: three epochs of four minibatches
    versions = {"relaxed": 4, "lockstep": 1, "synchronous": 0}[discipline]
    assert summary["staleness"]["max"] <= versions * updates
    action, _ = result.policy.predict(np.zeros(4, np.float32))
    assert action in (0, 1)


class SlowInOneActor(gymnasium.Wrapper):
    """CartPole that is slow in the actor that was first to take the lock, and in no other process."""

    seconds = 0.0005

    def __init__(self, env, lock_path):
        super().__init__(env)
        self._file = open(lock_path, "a")  # noqa: SIM115 (held open: the lock is this process's)
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._slow = True
        except OSError:
            self._slow = False

    def step(self, action):
        if self._slow:
            time.sleep(self.seconds)
        return super().step(action)


def slow_cartpole(lock_path):
    return lambda: SlowInOneActor(gymnasium.make("CartPole-v1"), lock_path)


def final_numbers(env, tmp_path, name, algorithm=None, **options):
    """All numbers of a lockstep run that must not depend on timing."""
    run_dir = tmp_path / name
    algorithm = algorithm or small(discipline="lockstep", normalize_observations=True, normalize_rewards=True)
    options = {**SMALL, "seed": 7, "run_dir": run_dir, **options}
    trainer = Trainer(env, algorithm, **options)
    result = trainer.learn(total_steps=5_000)
    last = trainer.snapshot()
    return {
        "weights": result.policy.weights.tobytes(),
        "updates": last.updates,
        "policy_version": last.policy_version,
        "env_steps": last.env_steps,
        "episodes": last.episodes,
        "loss": last.loss,
        "metrics": last.train_metrics,
        "staleness": last.staleness_counts,
    }


def test_lockstep_gives_the_same_numbers_whatever_the_timing(tmp_path):
    lock = str(tmp_path / "lock")
    plain = final_numbers("CartPole-v1", tmp_path, "plain")
    assert plain["updates"] > 100 and plain["policy_version"] > 10
    again = final_numbers("CartPole-v1", tmp_path, "again")
    assert again == plain
    bursts = final_numbers(
        "CartPole-v1", tmp_path, "bursts", burst_seconds=1e-6, report_interval_seconds=0.02
    )
    assert bursts == plain, "however the steps fall into bursts"
    slowed = final_numbers(
        slow_cartpole(lock), tmp_path, "slow", eval_interval_steps=200, checkpoint_interval_seconds=0.05
    )
    assert slowed == plain, "with one actor ten times slower, evaluations and checkpoints in between"
    other = final_numbers("CartPole-v1", tmp_path, "other", seed=8)
    assert other["weights"] != plain["weights"]


@pytest.mark.parametrize("discipline", ["lockstep", "synchronous"])
def test_pqn_in_lockstep_gives_the_same_numbers_whatever_the_timing(tmp_path, discipline):
    algorithm = PQN(
        segment_length=16, hidden_sizes=(16, 16), normalize_observations=True, discipline=discipline
    )
    plain = final_numbers("CartPole-v1", tmp_path, "plain", algorithm)
    assert plain["updates"] > 50
    slow = slow_cartpole(str(tmp_path / "lock"))
    slowed = final_numbers(slow, tmp_path, "slow", algorithm, burst_seconds=1e-6, eval_interval_steps=500)
    assert slowed == plain


def test_lockstep_impala_is_deterministic_too(tmp_path):
    algorithm = IMPALA(segment_length=16, hidden_sizes=(16, 16), discipline="lockstep")
    first, second = (final_numbers("CartPole-v1", tmp_path, name, algorithm) for name in "ab")
    assert first == second


@pytest.mark.parametrize("discipline", ["relaxed", "lockstep"])
def test_killed_actor_is_replaced_and_training_goes_on(discipline):
    trainer = Trainer("CartPole-v1", small(discipline=discipline), report_interval_seconds=0.05, **SMALL)
    trainer.start(total_steps=12_000)
    wait_until(lambda: (s := trainer.snapshot()) is not None and s.env_steps > 500, "500 steps")
    os.kill(trainer.snapshot().actors[0].pid, signal.SIGKILL)
    result = asyncio.run(trainer.wait())
    assert result.stop_reason == "total_steps"
    assert result.summary["actor_restarts"] == 1
    assert result.summary["env_steps"] >= 12_000


def test_relaxed_waits_for_no_particular_actor():
    """One actor needs 20 ms per step: the other makes the steps, and the run does not wait for the slow one."""
    with tempfile.TemporaryDirectory() as folder:
        slow = SlowInOneActor.seconds
        SlowInOneActor.seconds = 0.02
        try:
            env = slow_cartpole(os.path.join(folder, "lock"))
            trainer = Trainer(env, small(segment_length=16), **SMALL)
            result = trainer.learn(total_steps=20_000)
        finally:
            SlowInOneActor.seconds = slow
    steps = sorted(actor.env_steps for actor in trainer.snapshot().actors)
    assert sum(steps) >= 20_000 and result.stop_reason == "total_steps"
    assert steps[1] > 3 * max(
        1, steps[0]
    )  # in lockstep both make as many; alone the fast one makes a hundred times more


def test_staleness_bound_holds_and_discards():
    with tempfile.TemporaryDirectory() as folder:
        env = slow_cartpole(os.path.join(folder, "lock"))
        algorithm = small(max_staleness=1, segments_per_batch=1, epochs=1)
        result = Trainer(env, algorithm, **SMALL).learn(total_steps=30_000)
    assert result.summary["staleness"]["max"] <= 1 * (32 * 4 // 64), "one version is two updates"
    assert 0 < result.summary["staleness"]["discarded_fraction"] < 0.5


def test_target_training_return_stops_at_the_mean_of_a_hundred_episodes():
    trainer = Trainer("CartPole-v1", small(), seed=0, target_training_return=30.0, **SMALL)
    result = trainer.learn(max_seconds=PATIENCE_SECONDS)
    summary = result.summary
    assert result.stop_reason == "target_training_return"
    assert summary["episodes"] >= 100 and summary["episodes_return_mean"] >= 30.0
    assert 0 < summary["time_to_training_target_seconds"] <= summary["train_seconds"]
    assert 0 < summary["steps_to_training_target"] <= summary["env_steps"]


def test_vector_factory_decides_how_many_environments_an_actor_has():
    def vector():
        return gymnasium.make_vec("CartPole-v1", num_envs=64, vectorization_mode="vector_entry_point")

    trainer = Trainer(
        vector, small(segment_length=16, epochs=4), num_actors=1, http="off", target_eval_episodes=5
    )
    result = trainer.learn(total_steps=8_000)
    assert trainer.snapshot().actors[0].env_steps >= 8_000
    assert result.summary["samples_per_insert"]["achieved"] == pytest.approx(4.0, rel=0.05)


@pytest.mark.parametrize(
    ("algorithm", "env"),
    [(record, env) for record in (PPO, IMPALA, A2C) for env in ("Pendulum-v1", "CartPole-v1")]
    + [(PQN, "CartPole-v1")],
    ids=lambda value: getattr(value, "name", value),
)
def test_every_segment_algorithm_takes_its_kinds_of_actions(algorithm, env):
    record = algorithm(segment_length=16, hidden_sizes=(8,))
    result = Trainer(env, record, **{**SMALL, "target_eval_episodes": 1}).learn(total_steps=1_000)
    observation = np.zeros(result.policy.spec.observation_shape, np.float32)
    action, _ = result.policy.predict(observation, deterministic=False)
    assert np.isfinite(np.asarray(action, np.float64)).all()


def test_lockstep_batch_is_one_segment_of_each_actor():
    with pytest.raises(ValueError, match="segments_per_batch must be the number of actors"):
        Trainer("CartPole-v1", small(discipline="lockstep", segments_per_batch=3), **SMALL).learn(
            total_steps=100
        )


class HugeReward(gymnasium.RewardWrapper):
    """Pays 1e38 from its 500th step on; the first rewards decide their scale."""

    steps = 0

    def reward(self, reward):
        self.steps += 1
        return 1e38 if self.steps > 500 else reward


def test_divergence_ends_the_run_and_keeps_the_batch(tmp_path):
    algorithm = small(max_grad_norm=None, normalize_advantages=False, normalize_rewards=False)
    trainer = Trainer(
        lambda: HugeReward(gymnasium.make("CartPole-v1")), algorithm, run_dir=tmp_path / "run", **SMALL
    )
    with pytest.raises(errors.TrainingDiverged, match="ASYNC022") as raised:
        trainer.learn(total_steps=20_000)
    with np.load(raised.value.facts["batch saved"]) as saved:
        assert saved["reward"].max() > 1e37
