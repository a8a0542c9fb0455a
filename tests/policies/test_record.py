"""Recorded datasets: Minari loads them, and they hold what the environment said, step by step."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from portable_policies import random_policy
from several_agents import Parallel

from asyncrl import DQN, PPO, SAC, Trainer, errors
from asyncrl.actors.streams import ActionForm
from asyncrl.cli.main import main
from asyncrl.envs.source import EnvSource
from asyncrl.interfaces import RESET, TRUNCATED
from asyncrl.policies.record import episodes_of_ring, record, record_replay, written_rows

minari = pytest.importorskip("minari")

IMAGE = spaces.Box(0, 255, (32, 36, 3), np.uint8)
LIMIT = 5
OBSERVATIONS: dict[str, spaces.Space[Any]] = {
    "vector": spaces.Box(-1e6, 1e6, (3,), np.float64),
    "image": IMAGE,
    "discrete": spaces.Discrete(20, start=4),
    "dict": spaces.Dict(
        {
            "count": spaces.Box(0, 1e6, (2,), np.float64),
            "which": spaces.MultiDiscrete([12, 7]),
            "more": spaces.Tuple([spaces.Discrete(9), spaces.Box(-1, 1, (1, 2), np.float32)]),
            "words": spaces.Text(5),
        }
    ),
    "tuple": spaces.Tuple([spaces.Text(5), spaces.Box(0, 1e6, (2,), np.float32), spaces.Discrete(9)]),
    "picture": spaces.Dict({"eye": IMAGE, "count": spaces.Box(0, 1e6, (2,), np.float32)}),
}


class Counting(gymnasium.Env[Any, Any]):
    """Its k-th episode has 3 + k % 3 steps or is truncated at `LIMIT`; observations tell episode and step."""

    def __init__(self, kind: str = "vector", discrete: bool = True) -> None:
        self.observation_space = OBSERVATIONS[kind]
        self.action_space = spaces.Discrete(3, start=2) if discrete else spaces.Box(-2, 6, (2,), np.float32)
        self.kind, self.episode, self.actions = kind, -1, list[Any]()

    def seen(self) -> Any:
        episode, step = self.episode, self.step_
        count = np.array((episode, step), np.float64)
        if self.kind == "vector":
            return np.array((episode, step, 1 / 3), np.float64)
        if self.kind == "image":
            return np.full(IMAGE.shape, 40 * step + episode, np.uint8)
        if self.kind == "discrete":
            return np.int64(4 + step)
        if self.kind == "picture":
            return {"eye": np.full(IMAGE.shape, 40 * step + episode, np.uint8), "count": np.float32(count)}
        if self.kind == "keyed":
            return self.observation_space.sample()
        if self.kind == "tuple":
            return "yes", np.float32(count), np.int64(step)
        return {
            "count": count,
            "which": np.array((episode % 12, step)),
            "more": (np.int64(step), np.full((1, 2), step / 10, np.float32)),
            "words": "yes",
        }

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.episode, self.step_ = self.episode + 1, 0
        return self.seen(), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action)
        self.step_ += 1
        terminated = self.step_ == 3 + self.episode % 4
        return self.seen(), float(np.sum(action)), terminated, self.step_ == LIMIT, {}


@pytest.mark.parametrize("discrete", [True, False])
@pytest.mark.parametrize("kind", sorted(OBSERVATIONS))
def test_minari_loads_every_step(kind: str, discrete: bool, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    algorithm: Any = DQN(hidden_sizes=(8,)) if discrete else SAC(hidden_sizes=(8,), network="mlp")
    if kind in ("image", "picture"):
        algorithm = PPO(network="small")
    policy = random_policy(algorithm, lambda: Counting(kind, discrete))
    recorded = record(policy, tmp_path / "counting-v3", steps=60, num_envs=3, deterministic=False)
    dataset = minari.load_dataset("counting-v3")
    assert dataset.id == "counting-v3" and dataset.spec.total_steps == recorded.steps
    assert 60 <= recorded.steps < 63, "a row of all environments completes the last step"
    assert dataset.total_episodes == recorded.episodes
    assert recorded.episodes - 3 <= len(recorded.returns) <= recorded.episodes
    env = Counting(kind, discrete)
    assert dataset.action_space == env.action_space
    for index, episode in enumerate(dataset.iterate_episodes()):
        ended = episode.terminations | episode.truncations
        assert ended[-1] and not ended[:-1].any()
        assert not (episode.terminations & episode.truncations).any()
        for action, reward in zip(episode.actions, episode.rewards, strict=True):
            assert env.action_space.contains(action) and reward == float(np.sum(action))
        env.episode = _episode_of(kind, episode.observations)
        for env.step_ in range(len(episode) + 1):
            _assert_same(_at(episode.observations, env.step_), env.seen())
        if index < len(recorded.returns):
            assert recorded.returns[index] == pytest.approx(episode.rewards.sum())
            if kind != "discrete":
                length = 3 + env.episode % 4
                assert len(episode) == min(length, LIMIT) and episode.terminations[-1] == (length <= LIMIT)
        else:
            assert episode.truncations[-1], "cut off at the end of the recording"


def _episode_of(kind: str, obs: Any) -> int:
    if kind == "discrete":
        return 0
    first = _at(obs, 0)
    if kind == "tuple":
        return int(first[0][0])
    return int(first[0] if kind == "vector" else first.flat[0] if kind == "image" else first["count"][0])


def _at(values: Any, step: int) -> Any:
    if isinstance(values, dict):
        return {key: _at(own, step) for key, own in values.items()}
    return tuple(_at(own, step) for own in values) if isinstance(values, tuple) else values[step]


def _assert_same(found: Any, wanted: Any) -> None:
    if isinstance(wanted, dict):
        assert set(found) == set(wanted) - {"words"}
        for key, own in found.items():
            _assert_same(own, wanted[key])
    elif isinstance(wanted, tuple):
        for own, other in zip(found, [part for part in wanted if not isinstance(part, str)], strict=True):
            _assert_same(own, other)
    else:
        assert np.asarray(found).dtype == np.asarray(wanted).dtype
        np.testing.assert_array_equal(found, wanted)


def test_one_seed_gives_one_dataset(tmp_path: Path) -> None:
    policy = random_policy(DQN(hidden_sizes=(8,)), "CartPole-v1")
    episodes = []
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        record(policy, tmp_path / name, steps=200, seed=seed, num_envs=2, deterministic=False)
        episodes.append(list(minari.MinariDataset(str(tmp_path / name / "data"))))
    same, other = (
        len(episodes[0]) == len(these)
        and all(
            np.array_equal(a.observations, b.observations) for a, b in zip(episodes[0], these, strict=True)
        )
        for these in episodes[1:]
    )
    assert same and not other


def test_a_policy_that_keeps_exploring_is_not_changed(tmp_path: Path) -> None:
    policy, seen = random_policy(DQN(hidden_sizes=(8,)), Counting), Counting()
    policy.keeps_exploring = True
    obs, _ = seen.reset()
    policy.predict(obs, deterministic=False)
    record(policy, tmp_path / "counting", steps=9, num_envs=3, deterministic=False)
    action, _ = policy.predict(obs, deterministic=False)
    assert seen.action_space.contains(action), "it goes on in as many streams as before"


def test_greedy_actions_are_those_of_predict(tmp_path: Path) -> None:
    policy = random_policy(DQN(hidden_sizes=(8,), frame_stack=3), "CartPole-v1")
    record(policy, tmp_path / "a", steps=100, num_envs=2)
    dataset = minari.MinariDataset(str(tmp_path / "a" / "data"))
    assert dataset.recover_environment().spec.id == "CartPole-v1"
    for episode in dataset:
        state = None
        for obs, action in zip(episode.observations[:-1], episode.actions, strict=True):
            found, state = policy.predict(obs.astype(np.float32), state, episode_start=state is None)
            assert found == action


def test_a_recurrent_policy_keeps_its_state_within_an_episode(tmp_path: Path) -> None:
    policy = random_policy(PPO(recurrent="gru", recurrent_size=8, hidden_sizes=(8,)), "CartPole-v1")
    record(policy, tmp_path / "a", steps=100, num_envs=3)
    for episode in minari.MinariDataset(str(tmp_path / "a" / "data")):
        state = None
        for obs, action in zip(episode.observations[:-1], episode.actions, strict=True):
            found, state = policy.predict(obs, state)
            assert found == action


class Raises(Counting):
    """Raises in its second episode."""

    def step(self, action: Any) -> Any:
        if self.episode == 1:
            raise RuntimeError("the rope broke")
        return super().step(action)


def test_what_was_recorded_before_an_error_is_kept(tmp_path: Path) -> None:
    policy = random_policy(DQN(hidden_sizes=(8,)), Raises)
    with pytest.raises(errors.EnvironmentRaised, match="RuntimeError in step: the rope broke"):
        record(policy, tmp_path / "a", steps=100, num_envs=1)
    assert [len(episode) for episode in minari.MinariDataset(str(tmp_path / "a" / "data"))] == [3]


class Diverges(Counting):
    """Gives NaN in its second episode."""

    what = "observation"

    def step(self, action: Any) -> Any:
        obs, reward, *rest = super().step(action)
        if self.episode == 1:
            obs, reward = (obs * np.float32(np.nan), reward) if self.what == "observation" else (obs, np.inf)
        return obs, reward, *rest


@pytest.mark.parametrize("what", ["observation", "reward"])
def test_no_dataset_holds_nan(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Diverges, "what", what)
    policy = random_policy(DQN(hidden_sizes=(8,)), Diverges)
    with pytest.raises(errors.NonFiniteStep, match=f"gave {what}s that are NaN or infinite in a recording"):
        record(policy, tmp_path / "a", steps=100, num_envs=1)
    assert [len(episode) for episode in minari.MinariDataset(str(tmp_path / "a" / "data"))] == [3]


def test_an_environment_with_other_spaces_by_now_is_refused_before_anything_is_written(
    tmp_path: Path,
) -> None:
    policy = random_policy(DQN(hidden_sizes=(8,)), "FrozenLake-v1")
    policy.source = EnvSource.from_user("FrozenLake8x8-v1")
    with pytest.raises(errors.SpacesDoNotFit, match="The observation space of FrozenLake8x8-v1"):
        record(policy, tmp_path / "a", steps=20)
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("key", ["arm/angle", "", "."])
def test_keys_that_hdf5_takes_for_paths_are_refused_before_anything_is_written(
    key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Minari's file could not be read again, or not be written."""
    parts = {"robot": spaces.Dict({key: spaces.Box(-1, 1, (2,))})}
    monkeypatch.setitem(OBSERVATIONS, "keyed", spaces.Dict(parts))
    policy = random_policy(DQN(hidden_sizes=(8,)), lambda: Counting("keyed"))
    with pytest.raises(errors.SpacesDoNotFit, match=f"has the key '{key}', which HDF5"):
        record(policy, tmp_path / "a", steps=20)
    assert not (tmp_path / "a").exists()


def test_the_command_says_what_it_wrote(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(random_policy(DQN(hidden_sizes=(8,)), Counting).save(tmp_path / "x.policy"))
    out = tmp_path / "data sets" / "first"
    command = ["record", file, "--out", str(out), "--steps", "50", "--envs", "2", "--no-deterministic"]
    assert main(command) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith("return       ") and "whole episodes" in lines[1]
    assert lines[2].startswith(f"dataset      {out}, 5") and lines[2].endswith("episodes")
    dataset = minari.MinariDataset(str(out / "data"))
    assert dataset.id == "first-v0" and "exploring actions" in dataset.storage.metadata["description"]
    assert main(command) == 1
    assert f"there is a dataset in {out} already" in capsys.readouterr().err


def test_a_folder_must_be_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["record", "runs/x"])
    assert "out must be given: asyncrl record RUN --out" in capsys.readouterr().err


@pytest.mark.parametrize(
    "option", [("--steps", "10"), ("--no-deterministic",), ("--envs", "2"), ("--seed", "1")]
)
def test_options_of_playing_are_refused_with_a_replay(
    option: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["record", "runs/x", "--out", "x", "--replay", *option])
    name = option[0].removeprefix("--").removeprefix("no-")
    assert f"{name} must be left out with replay" in capsys.readouterr().err


def test_an_extra_is_named_where_minari_is_missing(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "minari", None)
    with pytest.raises(errors.ConfigurationError, match=r'pip install "asyncrl\[data\]"'):
        record(random_policy(DQN(hidden_sizes=(8,)), Counting), tmp_path / "a", steps=10)


# ---- the replay of a run ---------------------------------------------------------------------------------------------


def kept_run(folder: Path, **options: Any) -> Path:
    """A run of two actors in `Counting`, whose replay is smaller than its steps."""
    record = DQN(
        hidden_sizes=(8,), learning_starts=20, batch_size=4, replay_capacity=128, discipline="lockstep"
    )
    run: dict[str, Any] = {"http": "off", "num_actors": 2, "envs_per_actor": 2, "eval_interval_steps": None}
    trainer = Trainer(Counting, record, run_dir=folder, target_eval_episodes=1, **run, **options)
    trainer.learn(total_steps=600)
    return folder


def test_a_kept_replay_is_written_episode_by_episode(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, out = kept_run(tmp_path / "run", save_replay_buffer=True), tmp_path / "replay"
    assert main(["record", str(run), "--replay", "--out", str(out)]) == 0
    dataset = minari.MinariDataset(str(out / "data"))
    assert "replay of dqn" in dataset.storage.metadata["description"]
    said = capsys.readouterr().out
    assert 64 < dataset.total_steps <= 128 and f"{dataset.total_steps:,} steps" in said
    env, cut, wholes = Counting(), 0, 0
    for episode in dataset:
        env.episode, first = int(episode.observations[0][0]), int(episode.observations[0][1])
        for row, obs in enumerate(episode.observations):
            assert obs[:2].tolist() == [env.episode, first + row], "one episode, step after step"
        assert [float(np.sum(a)) for a in episode.actions] == episode.rewards.tolist()
        assert all(env.action_space.contains(action) for action in episode.actions)
        length = 3 + env.episode % 4
        whole = first + len(episode) == min(length, LIMIT)
        assert bool(episode.terminations[-1]) == (whole and length <= LIMIT)
        assert (episode.terminations | episode.truncations)[-1]
        cut += first > 0 or not whole
        wholes += first == 0 and whole
    assert cut <= 8, "at most the first and the last episode of each environment"
    shown = re.search(r"over (\d+) whole episodes", said)
    assert shown is not None and wholes - 4 <= int(shown[1]) <= wholes, (
        "the first of each may not be known as whole"
    )


def test_a_replay_that_was_not_kept(tmp_path: Path) -> None:
    run = kept_run(tmp_path / "run")
    with pytest.raises(
        errors.ConfigurationError, match=r"no replay beside the checkpoint .*was not told to keep it"
    ):
        record_replay(run, tmp_path / "replay")
    ppo = Trainer(
        Counting,
        PPO(hidden_sizes=(8,), segment_length=16),
        run_dir=tmp_path / "ppo",
        http="off",
        num_actors=1,
        envs_per_actor=2,
        target_eval_episodes=1,
    )
    ppo.learn(total_steps=64)
    with pytest.raises(errors.ConfigurationError, match="a run of ppo has no replay"):
        record_replay(tmp_path / "ppo", tmp_path / "replay")


@pytest.mark.parametrize("algorithm", [PPO(hidden_sizes=(8,), segment_length=16), DQN(hidden_sizes=(8,))])
def test_a_run_of_several_agents_is_not_told_to_record_its_policy_or_to_keep_a_replay(
    algorithm: Any, tmp_path: Path
) -> None:
    run: dict[str, Any] = {"http": "off", "num_actors": 1, "envs_per_actor": 2, "target_eval_episodes": 1}
    Trainer(Parallel, algorithm, run_dir=tmp_path / "run", **run).learn(total_steps=64)
    with pytest.raises(errors.SpacesDoNotFit, match="an episode of a Minari dataset has one") as refused:
        record_replay(tmp_path / "run", tmp_path / "replay")
    assert "take an environment with one agent" in str(refused.value)


def test_a_new_life_of_an_actor_cuts_its_episodes() -> None:
    ring = {
        "obs": np.arange(9, dtype=np.float32).reshape(1, 9, 1),
        "action": np.zeros((1, 9), np.int64),
        "reward": np.arange(9, dtype=np.float32)[None],
        "flags": np.array([[0, TRUNCATED, RESET, 0, 0, RESET, 0, 0, 0]], np.uint8),
        "incarnation": np.array([0, 0, 0, 0, 0, 1, 1, 1, 1], np.int32),
    }
    found = list(episodes_of_ring(ring, ActionForm(spaces.Discrete(2, start=3))))
    assert [episode.obs[:, 0].tolist() for episode, _ in found] == [[0, 1, 2], [3, 4], [6, 7, 8]]
    assert [episode.reward.tolist() for episode, _ in found] == [[0, 1], [3], [6, 7]]
    assert [ended for _, ended in found] == [True, False, False]
    assert found[0][0].action.tolist() == [3, 3] and not found[0][0].terminated
    later = episodes_of_ring(ring, ActionForm(spaces.Discrete(2, start=3)), begins=False)
    assert not any(whole for _, whole in later), "the only one that was ended has lost its beginning"


def test_slots_that_no_actor_has_written_are_no_steps() -> None:
    """A run that was resumed without its rows goes on behind them, in a ring that is empty before."""
    ring = {
        "obs": np.array([[0, 0, 0, 0, 7, 8, 9]], np.float32)[:, :, None],
        "action": np.zeros((1, 7), np.int64),
        "reward": np.array([[0, 0, 0, 0, 1, 2, 0]], np.float32),
        "flags": np.array([[0, 0, 0, RESET, 0, TRUNCATED, 0]], np.uint8),
        "incarnation": np.array([0, 0, 0, 1, 1, 1, 0], np.int32),
        "version": np.array([0, 0, 0, 4, 4, 5, 0], np.int64),
    }
    found = list(episodes_of_ring(written_rows(ring), ActionForm(spaces.Discrete(2)), begins=False))
    assert [(episode.obs[:, 0].tolist(), whole) for episode, whole in found] == [([7, 8, 9], True)]
