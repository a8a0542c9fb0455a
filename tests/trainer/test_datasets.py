"""Runs on a dataset alone, and with demonstrations beside the actors' steps."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from datasets import write_dataset
from resume_rig import numbers

from asyncrl import BC, DQN, IQL, PPO, R2D2, TD3, TD3BC, Trainer, errors, load
from asyncrl.cli.main import main

pytest.importorskip("minari")

RUN: dict[str, Any] = {"http": "off", "seed": 3, "eval_episodes": 2, "target_eval_episodes": 2}
LOCKSTEP = DQN(
    discipline="lockstep",
    prioritized=True,
    n_step=3,
    learning_starts=100,
    batch_size=32,
    hidden_sizes=(16,),
    beta_end=0.4,
    replay_capacity=512,
)


class Reach(gymnasium.Env[Any, Any]):
    """A point is moved towards 0.5; the reward is minus the distance, an episode has eight steps."""

    observation_space = gymnasium.spaces.Box(-2, 2, (1,))
    action_space = gymnasium.spaces.Box(-1, 1, (1,))

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.at, self.steps = self.np_random.uniform(-1, 1, 1).astype(np.float32), 0
        return self.at, {}

    def step(self, action: Any) -> Any:
        self.at, self.steps = np.clip(self.at + 0.5 * action, -2, 2).astype(np.float32), self.steps + 1
        return self.at, -float(abs(self.at[0] - 0.5)), False, self.steps == 8, {}


def anything(obs: Any, rng: np.random.Generator) -> Any:
    """Uniformly random actions: imitation alone learns nothing."""
    return rng.uniform(-1, 1, 1).astype(np.float32)


@pytest.fixture(scope="module")
def balanced(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_dataset(tmp_path_factory.mktemp("sets") / "balanced", steps=1_500))


@pytest.fixture(scope="module")
def random_reach(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_dataset(tmp_path_factory.mktemp("sets") / "reach", Reach, anything, steps=4_000))


def test_a_step_is_an_update(balanced: str, tmp_path: Path) -> None:
    steps: list[tuple[int, int]] = []
    trainer = Trainer(
        "CartPole-v1",
        BC(hidden_sizes=(16,)),
        dataset=balanced,
        run_dir=tmp_path / "run",
        eval_interval_steps=100,
        **RUN,
    )
    result = trainer.learn(total_steps=350, on_snapshot=lambda s: steps.append((s.env_steps, s.updates)))
    assert result.stop_reason == "total_steps" and all(taken == made for taken, made in steps)
    assert result.summary["env_steps"] == result.summary["updates"] == 350
    assert [evaluation.env_steps for evaluation in result.evaluations] == [100, 200, 300, 350]
    assert result.summary["episodes"] == 0 and not trainer.snapshot().actors  # type: ignore[union-attr]
    assert result.summary["samples_per_insert"] == {"target": None, "achieved": 0}
    policy = load(tmp_path / "run", checkpoint="latest")
    assert policy.predict(np.zeros(4, np.float32))[0] in (0, 1)


def test_stacks_may_be_longer_than_a_dataset(tmp_path: Path) -> None:
    short = write_dataset(tmp_path / "short", Reach, anything, steps=1)
    record = BC(frame_stack=64, hidden_sizes=(8,), batch_size=4)
    result = Trainer(Reach, record, dataset=short, eval_interval_steps=None, **RUN).learn(total_steps=10)
    assert result.summary["updates"] == 10 and result.evaluation is not None


CONSTANT = partial(IQL, actor_learning_rate_schedule="constant")  # a cosine runs over all steps of a run


@pytest.fixture(scope="module")
def short_reach(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A set that is read in no time, where the numbers count and not what is learned from them."""
    return str(write_dataset(tmp_path_factory.mktemp("sets") / "short", Reach, anything, steps=400))


@pytest.mark.parametrize("record", [BC, TD3BC, CONSTANT], ids=["bc", "td3bc", "iql"])
def test_half_and_half_is_a_whole(record: Any, short_reach: str, tmp_path: Path) -> None:
    def trainer(folder: Path | None) -> Trainer:
        return Trainer(
            Reach,
            record(hidden_sizes=(8,), batch_size=32),
            dataset=short_reach,
            run_dir=folder,
            eval_interval_steps=40,
            **RUN,
        )

    trainer(tmp_path / "run").learn(total_steps=100)
    second = Trainer.resume(tmp_path / "run", "+100")
    assert second.resumed_from[1:] == (), "nothing begins anew"
    resumed = second.learn()
    first = trainer(None)
    expected = numbers(first, first.learn(total_steps=200))
    found = numbers(second, resumed)
    assert found == expected


class TenfoldReach(Reach):
    """The same with rewards ten times as large."""

    def step(self, action: Any) -> Any:
        obs, reward, *rest = super().step(action)
        return obs, 10.0 * reward, *rest


def test_critics_of_iql_are_worth_as_much_on_a_dataset_of_larger_rewards(
    short_reach: str, tmp_path: Path
) -> None:
    larger = str(write_dataset(tmp_path / "set", TenfoldReach, anything, steps=400))
    options: dict[str, Any] = {"hidden_sizes": (8,), "batch_size": 32}
    Trainer(Reach, IQL(**options), dataset=short_reach, run_dir=tmp_path / "run", **RUN).learn(50)
    first = load(tmp_path / "run")
    still = IQL(**options, learning_rate=1e-30, actor_learning_rate=1e-30)
    trainer = Trainer(TenfoldReach, still, dataset=larger, init_from=tmp_path / "run", **RUN)
    second = trainer.learn(5).policy
    before, after = first.meta.reward_scale, second.meta.reward_scale
    assert before is not None and after == pytest.approx(before / 10)
    assert first.critics is not None and second.critics is not None
    # The last nine weights of a critic are its head's.
    np.testing.assert_allclose(second.critics[:, -9:], first.critics[:, -9:] / 10, rtol=1e-5)
    np.testing.assert_array_equal(second.critics[:, :-9], first.critics[:, :-9])


def test_a_run_goes_on_with_its_own_dataset_only_wherever_it_is(
    balanced: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, other = tmp_path / "set", write_dataset(tmp_path / "other", steps=1_500, seed=5)
    shutil.copytree(balanced, folder)
    with monkeypatch.context() as here:
        here.chdir(tmp_path)
        trainer = Trainer("CartPole-v1", BC(hidden_sizes=(8,)), dataset="set", run_dir="run", **RUN)
        trainer.learn(total_steps=10)
    assert Trainer.resume(tmp_path / "run", 15).learn().summary["updates"] == 15, "from another directory"
    folder.rename(tmp_path / "moved")
    ended = (tmp_path / "run" / "summary.json").read_bytes()
    with pytest.raises(errors.ConfigurationError, match="dataset may not change"):
        Trainer.resume(tmp_path / "run", 20, dataset=None)
    with pytest.raises(
        errors.ConfigurationError, match="the dataset must be the one that the run began with"
    ) as no:
        Trainer.resume(tmp_path / "run", 20, dataset=str(other)).learn()
    assert "--dataset DIR" in str(no.value)
    assert (tmp_path / "run" / "summary.json").read_bytes() == ended, "the run is as it was"
    found = Trainer.resume(tmp_path / "run", 20, dataset=str(tmp_path / "moved")).learn()
    assert found.summary["updates"] == 20


@pytest.mark.slow
@pytest.mark.parametrize(
    ("record", "updates", "lowest", "most"),
    [
        # The best policy reaches about -0.6, a random one -5.
        (TD3BC(hidden_sizes=(32,), batch_size=64, learning_rate=3e-3, tau=0.05, alpha=10.0), 800, -1.2, 0.0),
        (
            IQL(
                hidden_sizes=(32,),
                batch_size=64,
                learning_rate=3e-3,
                tau=0.05,
                expectile=0.9,
                inverse_temperature=10.0,
            ),
            1_500,
            -1.6,
            0.0,
        ),
        (BC(hidden_sizes=(32,), batch_size=64, learning_rate=3e-3), 800, -20.0, -2.5),
    ],
    ids=["td3bc", "iql", "bc"],
)
def test_better_than_the_random_actions_of_the_dataset(
    record: Any, updates: int, lowest: float, most: float, random_reach: str
) -> None:
    """Imitation of random actions stays bad; a wrong expectile, weight or scale does not pass the bar."""
    result = Trainer(
        Reach, record, dataset=random_reach, eval_interval_steps=None, **RUN | {"target_eval_episodes": 50}
    ).learn(total_steps=updates)
    assert result.evaluation is not None and lowest <= result.evaluation.return_mean <= most


@pytest.mark.slow
def test_a_good_policy_is_cloned(balanced: str) -> None:
    record = BC(hidden_sizes=(64,), batch_size=128, learning_rate=3e-3)
    result = Trainer(
        "CartPole-v1",
        record,
        dataset=balanced,
        eval_interval_steps=None,
        **RUN | {"target_eval_episodes": 20},
    ).learn(total_steps=1_000)
    assert result.evaluation is not None and result.evaluation.return_mean > 300


def test_what_the_data_of_a_run_must_be(balanced: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match=r"^dataset must be given for bc, which learns from one alone"):
        Trainer("CartPole-v1", BC())
    with pytest.raises(
        ValueError, match=r"^dataset must be none for dqn, .*bc, iql, td3bc, or give demonstrations"
    ):
        Trainer("CartPole-v1", DQN(), dataset=balanced)
    for record in (PPO(), R2D2()):
        with pytest.raises(
            ValueError, match=rf"^demonstrations must be none for {record.name}, which has no replay"
        ):
            Trainer("CartPole-v1", record, demonstrations=balanced)
    with pytest.raises(ValueError, match=r"^demonstrations must be none with groups=2"):
        Trainer("CartPole-v1", DQN(), demonstrations=balanced, groups=2)
    with pytest.raises(ValueError, match=r"^replay_device must be cpu with demonstrations, got auto"):
        Trainer("CartPole-v1", DQN(replay_device="auto"), demonstrations=balanced)
    with pytest.raises(errors.SpacesDoNotFit, match="another observation space than Acrobot-v1"):
        Trainer("Acrobot-v1", BC(), dataset=balanced, **RUN).learn(total_steps=10)
    assert main(["train", "CartPole-v1", "--algo", "bc", "--run-dir", "none"]) == 2
    assert "argument --dataset: dataset must be given for bc" in capsys.readouterr().err


# ---- demonstrations -------------------------------------------------------------------------------------------------


def shown(folder: Path | None, dataset: str, **options: Any) -> Trainer:
    return Trainer(
        "CartPole-v1",
        LOCKSTEP,
        demonstrations=dataset,
        demonstration_fraction=0.25,
        num_actors=2,
        envs_per_actor=2,
        run_dir=folder,
        save_replay_buffer=folder is not None,
        eval_interval_steps=300,
        **{**RUN, **options},
    )


def test_runs_with_demonstrations_are_equal_and_resumed_exactly(balanced: str, tmp_path: Path) -> None:
    first = shown(tmp_path / "run", balanced)
    first.learn(total_steps=400)
    second = Trainer.resume(tmp_path / "run", 800)
    assert len(second.resumed_from) == 1
    found = numbers(second, second.learn())
    whole = shown(None, balanced)
    assert found == numbers(whole, whole.learn(total_steps=800))
    without = Trainer("CartPole-v1", LOCKSTEP, num_actors=2, envs_per_actor=2, eval_interval_steps=300, **RUN)
    assert numbers(without, without.learn(total_steps=800)) != found


def test_values_are_compared_with_the_returns_of_the_actors_rows_alone(short_reach: str) -> None:
    """A demonstration's id names no row of the actors: with three environments not even a stream."""
    pairs: list[int] = []
    record = TD3(discipline="lockstep", learning_starts=50, batch_size=64, hidden_sizes=(8,), gamma=0.5)
    trainer = Trainer(
        Reach,
        record,
        demonstrations=short_reach,
        demonstration_fraction=0.75,
        num_actors=1,
        envs_per_actor=3,
        report_interval_steps=50,
        **RUN,
    )
    shown = trainer.learn(
        300, on_snapshot=lambda s: pairs.append(len(s.value_pairs.predicted) if s.value_pairs else 0)
    )
    assert shown.summary["env_steps"] >= 300 and 0 < max(pairs) <= 16, pairs


def test_a_run_goes_on_with_its_own_demonstrations_only_wherever_they_are(
    balanced: str, tmp_path: Path
) -> None:
    folder = write_dataset(tmp_path / "shown", steps=600)
    shown(tmp_path / "run", str(folder)).learn(total_steps=200)
    folder.rename(tmp_path / "moved")
    write_dataset(folder, steps=600, seed=5)
    with pytest.raises(
        errors.ConfigurationError, match="the dataset must be the one that the run began with"
    ) as no:
        Trainer.resume(tmp_path / "run", 400).learn()
    assert "--demonstrations DIR" in str(no.value)
    found = Trainer.resume(tmp_path / "run", 400, demonstrations=str(tmp_path / "moved")).learn()
    assert found.summary["env_steps"] >= 400
    with pytest.raises(errors.ConfigurationError, match="demonstrations may not change"):
        Trainer.resume(tmp_path / "run", 600, demonstrations=None)


def test_a_run_goes_on_with_its_demonstrations_at_another_n_step(tmp_path: Path) -> None:
    """Its dataset was refused as another one, for it was known by as many rows behind its end as there are steps."""
    folder = write_dataset(tmp_path / "shown", steps=500)
    slots = 1 << (500 + 1).bit_length()
    shown(tmp_path / "run", str(folder)).learn(total_steps=200)
    write_dataset(tmp_path / "longer", steps=2 * slots)
    with pytest.raises(errors.ConfigurationError, match="it holds other steps"):
        Trainer.resume(tmp_path / "run", 400, demonstrations=str(tmp_path / "longer")).learn()
    found = Trainer.resume(tmp_path / "run", 400, n_step=slots - 500).learn()
    assert found.summary["env_steps"] >= 400
