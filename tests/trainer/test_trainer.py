"""Trainer end to end through its public interface: real actors, rings and updates, on small runs.

That nothing is left behind is checked after every test by `conftest.py`.
"""

import asyncio
import gc
import importlib
import json
import os
import signal
import sys
import threading
import time
import urllib.request

import gymnasium
import numpy as np
import pytest
from waiting import PATIENCE_SECONDS, wait_until

import asyncrl
from asyncrl import DQN, PPO, Trainer, errors

SUMMARY_KEYS = {
    "algo", "env", "seed", "stop_reason", "env_steps", "updates", "episodes", "policy_version", "wall_seconds",
    "train_seconds", "startup_seconds", "time_to_target_seconds", "steps_to_target", "eval", "env_steps_per_second",
    "updates_per_second", "staleness", "samples_per_insert", "learner_wait_fraction", "actor_wait_fraction",
    "actor_restarts", "time_to_training_target_seconds", "steps_to_training_target", "episodes_return_mean",
    "updates_to_target", "staleness_versions", "policy_lag", "state", "error", "reward_threshold",
}  # fmt: skip

SMALL = {"envs_per_actor": 4, "num_actors": 2, "http": "off", "target_eval_episodes": 5}


def small(**changes):
    fields = {"learning_starts": 200, "replay_capacity": 8_000, "batch_size": 32, "samples_per_insert": 4.0}
    return DQN(**{**fields, **changes})


def stats_of(trainer):
    with urllib.request.urlopen(f"{trainer.url}/stats", timeout=PATIENCE_SECONDS) as answer:
        return json.load(answer)


def test_learn_counts_steps_and_returns_a_policy_that_acts():
    result = Trainer("CartPole-v1", small(), seed=1, **SMALL).learn(total_steps=3_000)
    summary = result.summary
    assert set(summary) == SUMMARY_KEYS
    assert result.stop_reason == summary["stop_reason"] == "total_steps"
    # whole rows of 4 environments, at most one row of each actor over
    assert 3_000 <= summary["env_steps"] <= 3_000 + 2 * 4
    # 4 samples for each of the 2,800 steps after learning_starts, within the error band
    band = 0.05 * 2_800 * 4
    assert abs(summary["updates"] * 32 - 4 * 2_800) <= band + 32
    assert summary["samples_per_insert"]["target"] == 4.0
    assert summary["samples_per_insert"]["achieved"] == pytest.approx(4.0, rel=0.05)
    assert summary["episodes"] > 20
    assert summary["eval"]["episodes"] == 5
    assert 0 < summary["train_seconds"] < summary["wall_seconds"]
    action, state = result.policy.predict(np.zeros(4, np.float32))
    assert action in (0, 1)
    assert state is None
    actions, _ = result.policy.predict(np.zeros((7, 4), np.float32))
    assert actions.shape == (7,)


def test_run_directory_holds_what_was_told_and_measured(tmp_path):
    run = tmp_path / "run"
    Trainer("CartPole-v1", small(), run_dir=run, report_interval_seconds=0.1, **SMALL).learn(
        total_steps=2_000
    )
    for name in ("config.toml", "meta.json", "metrics.jsonl", "progress.csv", "summary.json"):
        assert (run / name).stat().st_size > 0, name
    assert json.loads((run / "summary.json").read_text())["env_steps"] >= 2_000
    assert json.loads((run / "meta.json").read_text())["seed"] == 0
    last = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["time/total_timesteps"] >= 2_000
    assert last["async/samples_per_insert_target"] == 4.0
    assert (run / "checkpoints" / "latest").exists()
    assert (run / "checkpoints" / "best").exists()
    assert not (run / "http.json").exists()
    with pytest.raises(errors.ConfigurationError, match="holds a run"):
        Trainer("CartPole-v1", small(), run_dir=run, **SMALL).learn(total_steps=100)


def test_a_refused_directory_leaves_no_other_error(tmp_path, caplog):
    for module in ("asyncrl.run.run", "asyncrl.trainer.ranks"):
        importlib.import_module(module)  # before, as by an earlier run: the probe is under way at the refusal
    (tmp_path / "summary.json").write_text("{}")
    with pytest.raises(errors.ConfigurationError, match="holds a run"):
        Trainer("CartPole-v1", small(), run_dir=tmp_path, **SMALL).learn(total_steps=100)
    gc.collect()
    assert [record.getMessage() for record in caplog.records] == []


def test_checkpoint_acts_as_the_returned_policy(tmp_path):
    from asyncrl.storage.checkpoint import read_policy

    run = tmp_path / "run"
    result = Trainer("CartPole-v1", small(), run_dir=run, **SMALL).learn(total_steps=1_500)
    saved = read_policy(run / "checkpoints" / "latest")
    assert saved.weights.tolist() == result.policy.weights.tolist()
    assert saved.meta.updates == result.summary["updates"]


def test_await_run_leaves_the_callers_loop_free():
    async def main():
        gaps, idle, done = [], [], asyncio.Event()

        async def tick():
            while not done.is_set():
                before = time.perf_counter()
                await asyncio.sleep(0.01)
                gaps.append(time.perf_counter() - before)

        def tick_elsewhere():
            while not done.is_set():
                before = time.perf_counter()
                time.sleep(0.01)
                idle.append(time.perf_counter() - before)

        ticking = asyncio.gather(tick(), asyncio.to_thread(tick_elsewhere))
        async with Trainer("CartPole-v1", small(), **SMALL) as trainer:
            result = await trainer.run(total_steps=3_000)
        done.set()
        await ticking
        return result, gaps, idle

    result, gaps, idle = asyncio.run(main())
    assert result.stop_reason == "total_steps"
    assert len(gaps) > len(idle) / 3 and np.median(gaps) < np.median(idle) + 0.02, "a thread that only sleeps"


def test_stream_yields_snapshots_up_to_the_last():
    async def main():
        trainer = Trainer("CartPole-v1", small(), report_interval_seconds=0.05, **SMALL)
        trainer.start()
        seen = []
        async for snapshot in trainer.stream(interval_seconds=0.05):
            seen.append(snapshot)
            if len(seen) == 3:
                trainer.stop()
        await trainer.wait()
        return seen

    seen = asyncio.run(main())
    assert seen[-1].stop_reason == "stopped"
    assert seen[-1].state == "stopped"
    steps = [s.env_steps for s in seen]
    assert steps == sorted(steps)
    assert len(seen) >= 3


def test_cancelled_run_stops_and_leaves_nothing():
    async def main():
        trainer = Trainer("CartPole-v1", small(), **SMALL)
        task = asyncio.create_task(trainer.run())
        while trainer.snapshot() is None or trainer.snapshot().env_steps == 0:
            await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.wait([task], timeout=PATIENCE_SECONDS)
        assert task.cancelled()
        return trainer.done

    assert asyncio.run(main())


def test_learn_inside_a_running_loop_names_the_await():
    async def main():
        Trainer("CartPole-v1", small(), **SMALL).learn(total_steps=100)

    with pytest.raises(errors.BlockingCallInLoop, match=r"await trainer\.run"):
        asyncio.run(main())


def test_stop_from_another_thread():
    trainer = Trainer("CartPole-v1", small(), **SMALL)
    threading.Thread(
        target=lambda: (
            wait_until(lambda: (s := trainer.snapshot()) and s.updates, "an update"),
            trainer.stop(),
        )
    ).start()
    result = trainer.learn()
    assert result.stop_reason == "stopped"


def test_stop_before_the_first_step_and_close_without_start():
    trainer = Trainer("CartPole-v1", small(), **SMALL)
    trainer.stop()
    assert trainer.learn(total_steps=100_000).stop_reason == "stopped"
    Trainer("CartPole-v1", small(), **SMALL).close()


def test_max_seconds_stops():
    from asyncrl.run import run  # imports torch, which actors that import this module must not

    result = Trainer("CartPole-v1", small(), **SMALL).learn(max_seconds=0.5)
    assert result.stop_reason == "max_seconds"
    assert 0.5 <= result.summary["train_seconds"] < PATIENCE_SECONDS and run.WATCH_SECONDS <= 0.1


def test_target_return_stops_with_the_weights_that_reached_it():
    trainer = Trainer("CartPole-v1", small(), eval_interval_steps=200, eval_episodes=3, **SMALL)
    result = trainer.learn(target_return=9.0, max_seconds=PATIENCE_SECONDS)  # any policy reaches it
    assert result.stop_reason == "target_return"
    assert result.evaluation.return_mean >= 9.0
    assert result.evaluation.episodes == 5
    assert result.summary["time_to_target_seconds"] <= result.summary["train_seconds"]
    assert result.summary["steps_to_target"] <= result.summary["env_steps"]


def test_a_trainer_runs_once():
    trainer = Trainer("CartPole-v1", small(), **SMALL)
    trainer.learn(total_steps=400)
    with pytest.raises(RuntimeError, match=r"has run already; .* Trainer\.resume\(run_dir"):
        trainer.learn(total_steps=400)


def test_killed_actor_is_replaced_and_training_goes_on():
    trainer = Trainer("CartPole-v1", small(), report_interval_seconds=0.05, **SMALL)
    trainer.start(total_steps=8_000)
    wait_until(lambda: (s := trainer.snapshot()) is not None and s.env_steps > 500, "500 steps")
    victim = trainer.snapshot().actors[0].pid
    os.kill(victim, signal.SIGKILL)
    result = asyncio.run(trainer.wait())
    assert result.stop_reason == "total_steps"
    assert result.summary["actor_restarts"] == 1
    assert result.summary["env_steps"] >= 8_000


def test_staleness_bound_holds_and_discards():
    algorithm = small(max_staleness=3, samples_per_insert=32.0, learning_starts=32)
    with pytest.warns(errors.SamplesTooStale, match=r"ASYNC020.*% of the steps.*actors make .*max_staleness"):
        result = Trainer("CartPole-v1", algorithm, **SMALL).learn(total_steps=1_500)
    assert result.summary["staleness"]["max"] <= 3
    assert result.summary["staleness"]["discarded_fraction"] > 0


def test_live_endpoints_of_a_run(tmp_path):
    run = tmp_path / "run"
    options = {**SMALL, "http": "auto"}
    trainer = Trainer("CartPole-v1", small(), run_dir=run, report_interval_seconds=0.05, **options)
    trainer.start()
    wait_until(lambda: (s := trainer.snapshot()) is not None and s.updates > 0, "an update")
    wait_until(lambda: stats_of(trainer)["env_steps"] > 0, "steps")  # encoded at most five times a second
    http = json.loads((run / "http.json").read_text())
    assert (run / "http.json").stat().st_mode & 0o777 == 0o600
    assert http["url"] == trainer.url
    request = urllib.request.Request(
        f"{trainer.url}/stop", method="POST", headers={"Authorization": f"Bearer {http['token']}"}
    )
    with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as answer:
        assert answer.status == 202
    assert asyncio.run(trainer.wait()).stop_reason == "stopped"
    assert not (run / "http.json").exists()


class RaisesAtStep(gymnasium.Wrapper):
    """CartPole with a fault, one of several kinds, at its 40th step."""

    def __init__(self, how):
        super().__init__(gymnasium.make("CartPole-v1"))
        self.how, self.steps = how, 0

    def step(self, action):
        obs, reward, terminated, truncated, info = self.env.step(action)
        self.steps += 1
        if self.steps == 40 and self.how == "raise":
            raise KeyError("the table is gone")
        if self.steps == 40:
            reward = float("nan")
        return obs, reward, terminated, truncated, info


def test_environment_that_raises_ends_the_run_with_its_traceback():
    with pytest.raises(errors.EnvironmentRaised, match=r"ASYNC002") as raised:
        Trainer(lambda: RaisesAtStep("raise"), small(), **SMALL).learn(total_steps=50_000)
    assert "the table is gone" in str(raised.value)
    assert "RaisesAtStep" in str(raised.value) or "in step" in str(raised.value)


def test_nan_reward_ends_the_run():
    with pytest.raises(errors.NonFiniteStep, match=r"ASYNC011"):
        Trainer(lambda: RaisesAtStep("nan"), small(), **SMALL).learn(total_steps=50_000)


def test_unknown_environment_names_near_misses():
    with pytest.raises(errors.UnknownEnvironment, match="CartPole-v1"):
        Trainer("CartPol-v1", small(), **SMALL).learn(total_steps=100)


def test_continuous_actions_do_not_fit():
    with pytest.raises(errors.SpacesDoNotFit, match=r"ASYNC005.*dqn"):
        Trainer("Pendulum-v1", small(), **SMALL).learn(total_steps=100)


def test_cuda_that_is_not_there_is_refused(monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(errors.DeviceNotAvailable, match=r"ASYNC016\] device cuda was asked for") as raised:
        Trainer("CartPole-v1", small(), device="cuda", **SMALL).learn(total_steps=100)
    built = torch.version.cuda or "no"
    assert raised.value.facts == {"asked": "cuda", "torch": torch.__version__, "built for CUDA": built}
    assert f"asked: cuda\n  torch: {torch.__version__}\n  built for CUDA: {built}\n" in str(raised.value)
    assert "use device cpu or auto" in str(raised.value)


def test_a_run_of_one_step_is_evaluated_too(tmp_path):
    result = Trainer("CartPole-v1", small(), run_dir=tmp_path, **SMALL).learn(total_steps=1)
    assert result.stop_reason == "total_steps" and result.summary["updates"] == 0
    assert result.evaluation is not None and result.evaluation.episodes == 5
    assert json.loads((tmp_path / "summary.json").read_text())["eval"]["episodes"] == 5


class SeesNothing(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (0,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)


def test_observations_without_a_value_are_refused_by_the_rule():
    with pytest.raises(
        errors.SpacesDoNotFit, match=r"Every axis of an observation must be at least 1.*\(0,\)"
    ):
        Trainer(SeesNothing, small(), **SMALL).learn(total_steps=10)


@pytest.mark.parametrize("seed", [2**63, -(2**70)])
def test_a_seed_beyond_64_bits_names_the_limit(seed):
    with pytest.raises(ValueError, match=r"seed must be below 2\*\*63 in magnitude, got"):
        Trainer("CartPole-v1", small(), seed=seed, **SMALL)


def test_a_batch_above_the_capacity_names_the_limit():
    with pytest.raises(ValueError, match=r"batch_size must be at most replay_capacity \(2000\), got 4000"):
        small(batch_size=4_000, replay_capacity=2_000)


@pytest.mark.parametrize("algorithm", [DQN(), PPO()], ids=["dqn", "ppo"])
def test_another_default_dtype_of_the_caller_is_refused(algorithm, caplog):
    """And nothing else is said: the environment is probed already, and the probe's end is waited for."""
    import torch  # not above: actors import this module

    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with pytest.raises(errors.ConfigurationError, match=r"default dtype must be float32.*got float64"):
            Trainer("CartPole-v1", algorithm, **SMALL).learn(total_steps=10)
    finally:
        torch.set_default_dtype(before)
    gc.collect()
    assert [record.message for record in caplog.records] == []


def test_replay_larger_than_memory_says_what_fits():
    with pytest.raises(errors.ReplayTooLarge, match=r"ASYNC010") as raised:
        Trainer("CartPole-v1", small(replay_capacity=10**12), **SMALL).learn(total_steps=100)
    assert "bytes per step" in str(raised.value)
    assert "set replay_capacity to" in str(raised.value)


def test_a_network_larger_than_memory_is_refused():
    with pytest.raises(
        errors.ResourceError, match=r"The network does not fit in memory: Unable to alloc"
    ) as raised:
        Trainer("CartPole-v1", small(hidden_sizes=(10**7, 10**7)), **SMALL).learn(total_steps=100)
    assert raised.value.fix == "make it smaller, by hidden_sizes or network"


def test_option_that_does_not_exist():
    with pytest.raises(TypeError, match="no option 'num_actor'; did you mean num_actors"):
        Trainer("CartPole-v1", small(), num_actor=2)


def test_pace_that_would_deadlock_is_refused():
    with pytest.raises(ValueError, match="samples_per_insert_error must be at least"):
        Trainer("CartPole-v1", small(samples_per_insert_error=1.0), **SMALL).learn(total_steps=100)


def test_too_many_actors_for_the_cores_is_a_warning():
    cores = len(os.sched_getaffinity(0))
    options = {**SMALL, "num_actors": cores + 1}
    text = (
        rf"ASYNC021\] {cores + 1} actors and 1 torch threads share {cores} cores; "
        rf"set num_actors to {max(1, cores - 1)} and torch_threads to 1$"
    )
    with pytest.warns(errors.TooManyThreads, match=text):
        Trainer("CartPole-v1", small(), **options).learn(total_steps=400)


def test_vector_factory_decides_how_many_environments_an_actor_has():
    def vector():
        return gymnasium.make_vec("CartPole-v1", num_envs=6, vectorization_mode="vector_entry_point")

    result = Trainer(vector, small(), num_actors=2, http="off", target_eval_episodes=2).learn(
        total_steps=1_200
    )
    assert 1_200 <= result.summary["env_steps"] <= 1_200 + 2 * 6
    assert result.summary["episodes"] > 5


def test_one_liner_uses_the_preset():
    result = asyncrl.train("CartPole-v1", "dqn", total_steps=1_000, http="off", target_eval_episodes=2)
    assert result.summary["samples_per_insert"]["target"] == DQN.preset("CartPole-v1").samples_per_insert


class NeedsNoTorch(gymnasium.Wrapper):
    """CartPole that raises in a process with torch; this module imports Trainer, as a user's module does."""

    def __init__(self):
        super().__init__(gymnasium.make("CartPole-v1"))
        if "torch" in sys.modules:
            raise ImportError("torch was imported in an actor")


def test_an_actor_that_imports_the_users_module_stays_free_of_torch():
    result = Trainer(NeedsNoTorch, small(), **SMALL).learn(total_steps=400)
    assert result.stop_reason == "total_steps"


class HugeReward(gymnasium.RewardWrapper):
    """CartPole with finite rewards whose squared error overflows, from a step of this environment."""

    def __init__(self, first=0):
        super().__init__(gymnasium.make("CartPole-v1"))
        self.left = first

    def reward(self, reward):
        self.left -= 1
        return reward if self.left > 0 else 1e30


@pytest.mark.parametrize("prioritized", [False, True])
def test_divergence_ends_the_run_and_keeps_the_batch(tmp_path, prioritized):
    algorithm = small(huber_delta=None, max_grad_norm=None, prioritized=prioritized, reward_scale=1.0)
    with pytest.raises(
        errors.TrainingDiverged, match=r"ASYNC022.*became NaN or infinite at update"
    ) as raised:
        Trainer(HugeReward, algorithm, run_dir=tmp_path / "run", **SMALL).learn(total_steps=20_000)
    facts, text = raised.value.facts, str(raised.value)
    assert list(facts) == ["update", "last finite loss", "batch saved"]
    assert f"at update {facts['update']}\n  update: {facts['update']}\n  last finite loss: none was" in text
    assert facts["batch saved"] == str(tmp_path / "run" / f"diverged_batch_{facts['update']}.npz")
    with np.load(facts["batch saved"]) as batch:
        assert batch["reward"].max() >= 1e30


def test_divergence_names_the_last_finite_loss():
    algorithm = small(huber_delta=None, max_grad_norm=None)
    seen = []
    trainer = Trainer(lambda: HugeReward(600), algorithm, report_interval_seconds=0.02, **SMALL)
    with pytest.raises(errors.TrainingDiverged, match=r"last finite loss: \d") as raised:
        trainer.learn(total_steps=40_000, on_snapshot=lambda snapshot: seen.append(snapshot.loss))
    assert raised.value.facts["last finite loss"] == [loss for loss in seen if loss is not None][-1]
    assert raised.value.facts["batch saved"] == "not saved (the run has no directory)"
