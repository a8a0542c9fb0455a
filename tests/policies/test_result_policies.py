"""Policies of a run's result: the final one, the best one, and the files of both."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from portable_policies import portable, small
from waiting import PATIENCE_SECONDS, wait_until

import asyncrl
from asyncrl import DQN, PPO, Trainer
from asyncrl.cli.main import main
from asyncrl.envs.checks import _action_spec
from asyncrl.errors import ConfigurationError
from asyncrl.interfaces import EnvSpec
from asyncrl.storage import checkpoint

ROOT = Path(__file__).parents[2]
SMALL = {"envs_per_actor": 4, "num_actors": 1, "http": "off", "target_eval_episodes": 3, "eval_episodes": 3}
RECORD = DQN(learning_starts=200, replay_capacity=8_000, batch_size=32, samples_per_insert=4.0)


def test_the_best_policy_stands_beside_the_final_one(tmp_path: Path) -> None:
    means: list[float] = []
    trainer = Trainer("CartPole-v1", RECORD, run_dir=tmp_path / "run", eval_interval_steps=500, **SMALL)
    result = trainer.learn(
        total_steps=3_000, on_snapshot=lambda s: means.extend(e.return_mean for e in s.evaluations)
    )
    best = result.best
    assert best is not None
    assert best.return_mean == best.evaluation.return_mean == max(means)
    assert best.policy.meta.env_steps == best.evaluation.env_steps
    assert best.policy.meta.return_mean == best.return_mean
    assert result.policy.meta.updates == result.summary["updates"]
    assert result.evaluation is not None
    assert best.return_mean >= result.evaluation.return_mean
    kept = asyncrl.load(tmp_path / "run")
    assert np.array_equal(kept.weights, best.policy.weights)
    assert kept.meta.env_steps == best.evaluation.env_steps
    latest = asyncrl.load(tmp_path / "run", checkpoint="latest")
    assert np.array_equal(latest.weights, result.policy.weights)
    assert latest.meta.return_mean == result.evaluation.return_mean
    assert latest.meta.env_steps == result.evaluation.env_steps
    obs = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32)
    file = result.policy.save(tmp_path / "final.policy")
    assert np.array_equal(asyncrl.load(file).predict(obs)[0], result.policy.predict(obs)[0])


def test_the_latest_weights_of_a_reached_target_are_those_that_reached_it(tmp_path: Path) -> None:
    trainer = Trainer("CartPole-v1", RECORD, run_dir=tmp_path, eval_interval_steps=500, **SMALL)
    result = trainer.learn(total_steps=20_000, target_return=9.0)
    assert result.stop_reason == "target_return" and result.evaluation is not None
    latest = asyncrl.load(tmp_path, checkpoint="latest")
    assert np.array_equal(latest.weights, result.policy.weights)
    assert latest.meta.return_mean == result.evaluation.return_mean >= 9.0
    assert latest.meta.env_steps == result.evaluation.env_steps < result.summary["env_steps"]


def test_a_run_without_an_evaluation_has_no_best() -> None:
    trainer = Trainer("CartPole-v1", RECORD, **{**SMALL, "eval_interval_steps": None})
    with trainer:
        trainer.start(total_steps=1_000_000)
        wait_until(lambda: bool((snapshot := trainer.snapshot()) and snapshot.updates), "an update")
        trainer.stop()
        result = trainer._done.result()
    assert result.best is None
    assert result.policy.predict(np.zeros(4))[0] in (0, 1)


SCRIPT = """
import gymnasium
from asyncrl import DQN, PPO, Trainer

class Mine(gymnasium.Wrapper):
    def __init__(self, length):
        super().__init__(gymnasium.make("CartPole-v1", max_episode_steps=length))

length = 17
record = DQN(learning_starts=100, replay_capacity=4_000)
Trainer(lambda: Mine(length), record, run_dir="run", num_actors=1, envs_per_actor=2, http="off",
        target_eval_episodes=2).learn(total_steps=400, progress=False)
"""


def test_a_run_of_a_factory_is_evaluated_and_trained_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "lam.py").write_text(SCRIPT)
    env = {**os.environ, "PYTHONPATH": str(ROOT), "NO_COLOR": "1"}
    done = subprocess.run(
        [sys.executable, "lam.py"],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
    )
    assert (done.returncode, done.stderr) == (0, "")
    (tmp_path / "lam.py").unlink()
    monkeypatch.chdir(tmp_path)
    assert main(["eval", "run", "--episodes", "3", "--json"]) == 0
    played = json.loads(capsys.readouterr().out)
    assert played["env"] == "<lambda> in lam.py:11"
    assert played["length_mean"] <= 17
    assert main(["train", "--config", "run/config.toml", "--run-dir", "again", "--steps", "300"]) == 0
    for name in ("run", "again"):
        assert (tmp_path / name / "environment.pkl").exists()
    with pytest.raises(asyncrl.AsyncRLError):
        asyncrl.load(tmp_path / "run", checkpoint="7").predict(np.zeros(4))


@pytest.mark.parametrize(
    "space",
    [
        gymnasium.spaces.Box(-3, 4, (2,), np.int64),
        gymnasium.spaces.Box(-1, 1, (2,), np.float16),
        gymnasium.spaces.MultiDiscrete([3, 2], dtype=np.int32),
        gymnasium.spaces.Discrete(3, start=-1, dtype=np.int32),
    ],
    ids=str,
)
def test_predict_gives_what_the_space_contains(space: Any) -> None:
    policy = portable(PPO(), EnvSpec("any", (3,), "float32", _action_spec("any", space)))
    obs = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)
    for deterministic in (True, False):
        assert all(space.contains(action) for action in policy.predict(obs, deterministic=deterministic)[0])
        assert space.contains(policy.predict(obs[0], deterministic=deterministic)[0])


def test_a_run_is_loaded_and_acts_without_torch(tmp_path: Path) -> None:
    options: Any = {"num_actors": 1, "envs_per_actor": 2, "http": "off", "eval_interval_steps": None}
    trainer = Trainer("CartPole-v1", DQN(hidden_sizes=(8, 8)), run_dir=tmp_path / "run", **options)
    trainer.learn(total_steps=400)
    script = (
        "import sys; sys.modules['torch'] = None\n"
        "import asyncrl, numpy\n"
        "print(asyncrl.load(sys.argv[1]).predict(numpy.zeros(4, numpy.float32), deterministic=True)[0] in (0, 1))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "run")], capture_output=True, text=True
    )
    assert done.stdout == "True\n", done.stderr


def test_damaged_options_of_a_run_are_named_not_its_checkpoint(tmp_path: Path) -> None:
    policy, options = small(), tmp_path / "config.toml"
    (tmp_path / "checkpoints").mkdir()
    checkpoint.save(tmp_path / "checkpoints" / "latest", {"weights": policy.weights}, policy.meta)
    options.write_bytes(b"[trainer]\nenv = \xff")
    with pytest.raises(ConfigurationError, match=r"config\.toml is not a TOML file") as error:
        asyncrl.load(tmp_path)
    assert error.value.facts["file"] == options


def test_a_checkpoint_by_its_steps_has_the_weights_of_these_steps(tmp_path: Path) -> None:
    """That of the best evaluation is one file under two names, and its learner has gone on since the evaluation."""
    options: dict[str, Any] = {"num_actors": 1, "envs_per_actor": 2, "eval_episodes": 1, "http": "off"}
    kept = {"run_dir": tmp_path, "eval_interval_steps": 200, "checkpoints_kept": 50}
    trainer = Trainer("CartPole-v1", DQN(learning_starts=100, hidden_sizes=(8,)), **options, **kept)
    result = trainer.learn(total_steps=1_000)
    folder = tmp_path / "checkpoints"
    numbers = [path.name for path in folder.iterdir() if path.name.isdecimal()]
    for number in numbers:
        policy, (state, meta) = asyncrl.load(tmp_path, checkpoint=number), checkpoint.load(folder / number)
        assert policy.meta.env_steps == meta.env_steps == int(number)
        assert np.array_equal(policy.weights, state.get("current", state)["weights"])
        assert np.array_equal(asyncrl.load(tmp_path, checkpoint=int(number)).weights, policy.weights)
    with pytest.raises(asyncrl.AsyncRLError, match=f"the run has no checkpoint ''; it has .*{numbers[0]}"):
        asyncrl.load(tmp_path, checkpoint="")
    best = asyncrl.load(tmp_path)
    assert result.best is not None and np.array_equal(best.weights, result.best.policy.weights)
    assert best.meta.env_steps == result.best.evaluation.env_steps
    # The last save may have replaced the best one's file of the same number of steps.
    same = [name for name in numbers if (folder / name).samefile(folder / "best")]
    if same and best.meta.env_steps != int(same[0]):
        assert not np.array_equal(best.weights, asyncrl.load(tmp_path, checkpoint=same[0]).weights)
