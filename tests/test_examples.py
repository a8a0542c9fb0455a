"""All examples run for a short time in this process, with the documented results."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
from fake_trackers import FakeMlflow, FakeOptuna, FakeWandb

from asyncrl import DQN, PPO, SAC
from asyncrl.algorithms.registry import ALGORITHMS

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted(path.name for path in (ROOT / "examples").glob("*.py"))
pytestmark = pytest.mark.usefixtures("short_evaluations")


def main_of(name: str) -> Any:
    return runpy.run_path(str(ROOT / "examples" / name), run_name="example")["main"]


def test_the_examples_are_short_and_say_how_to_run_them() -> None:
    assert len(EXAMPLES) >= 10
    for name in EXAMPLES:
        text = (ROOT / "examples" / name).read_text()
        assert len(text.splitlines()) < 100 and f"python examples/{name} [" in text, name


@pytest.fixture
def one_actor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run one actor in place of the preset's: each process that acts with a user's network imports torch."""
    own = DQN.preset_options.__func__  # type: ignore[attr-defined]
    for record in (DQN, PPO, SAC):
        one = classmethod(lambda cls, env: own(cls, env) | {"num_actors": 1})
        monkeypatch.setattr(record, "preset_options", one)


@pytest.mark.slow
@pytest.mark.usefixtures("one_actor")
def test_a_network_of_ones_own_learns(capsys: pytest.CaptureFixture[str]) -> None:
    assert main_of("own_network.py")("ppo") >= 475 and "target_return" in capsys.readouterr().out


@pytest.mark.usefixtures("one_actor")
@pytest.mark.parametrize(("name", "steps", "least"), [("dqn", 1_500, 0), ("sac", 800, -4_000)])
def test_own_network_runs(name: str, steps: int, least: float) -> None:
    assert main_of("own_network.py")(name, steps) > least


def test_pixels_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert -1 <= main_of("pixels.py")("dqn", 1_500) <= 1
    told = capsys.readouterr().out
    assert "images 21x21x1, 2 frames: small convolutional network: total_steps" in told
    assert told.split()[-1] in ("caught", "missed")  # test_learning_pixels.py is the same preset's learning


@pytest.mark.parametrize("name", ["ppo", "dqn", "impala", "vdn", "qmix", "mappo", "maddpg"])
def test_several_agents_run(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("mpe2")
    # 1,500 steps teach little: three agents that leave the field are paid about -100 each.
    assert -400 < main_of("several_agents.py")(name, 1_500) < 0
    assert "'agent_2': -" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["ppo", "dqn", "impala"])
def test_policies_by_agent_run(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("mpe2")
    returns = main_of("policies_by_agent.py")(name, 1_000, 2)
    assert returns.keys() == {"adversary", "good"}
    told = capsys.readouterr().out
    assert "both random         adversary " in told and "both trained        adversary " in told


def test_every_example_is_run() -> None:
    text = Path(__file__).read_text()
    assert [name for name in EXAMPLES if f'main_of("{name}")' not in text] == []


def test_quickstart_runs() -> None:
    assert main_of("quickstart.py")(2_000) >= 8


def test_own_environment_is_learned() -> None:
    assert main_of("own_environment.py")(30_000) > 0.5  # chance is about -0.4


def test_own_algorithm_is_registered_and_learns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ALGORITHMS, "_names", list(ALGORITHMS))
    monkeypatch.setattr(ALGORITHMS, "_records", dict(ALGORITHMS))
    assert main_of("own_algorithm.py")(40_000) > 60  # chance is 10 to 20
    assert "vpg" in ALGORITHMS


def test_schedules_run() -> None:
    assert set(main_of("schedules.py")(3_000)) == {"ppo", "dqn"}


def test_two_runs_at_once_end_together(capsys: pytest.CaptureFixture[str]) -> None:
    assert main_of("two_runs_at_once.py")(4_000) in ("seed 0", "seed 1")
    assert capsys.readouterr().out.count("TrainResult(") == 2


def test_continuous_actions_run() -> None:
    assert main_of("continuous_actions.py")(2_500) < 0


def test_wandb_is_told_of_reports_and_evaluations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", wandb := FakeWandb())
    main_of("wandb_logging.py")(3_000)
    assert wandb.options["project"] == "asyncrl" and wandb.options["config"]["dqn.learning_rate"] == 0.001
    assert wandb.metrics["eval/*"] == "eval/total_timesteps" and wandb.exit_code == 0
    assert any("eval/mean_reward" in values for values in wandb.logged)
    assert any("rollout/ep_rew_mean" in values for values in wandb.logged)


def test_mlflow_is_told_of_reports_and_evaluations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", mlflow := FakeMlflow())
    main_of("mlflow_logging.py")(3_000)
    assert mlflow.params["env"] == "CartPole-v1" and mlflow.status == "FINISHED" and mlflow.artifacts
    steps = [step for step, values in mlflow.logged if "eval/mean_reward" in values]
    assert len(steps) >= 3 and steps == sorted(steps)


def test_optuna_prunes_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", optuna := FakeOptuna())
    best = main_of("optuna_pruning.py")(2_000, 2)
    kept, pruned = optuna.trials
    assert (kept.state, pruned.state) == ("complete", "pruned") and kept.value == best
    assert len(pruned.reports) == 1 < len(kept.reports)


def test_goals_run() -> None:
    assert -8 <= main_of("goals.py")(1_000) < 0
