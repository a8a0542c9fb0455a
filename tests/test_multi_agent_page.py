"""The code of docs/multi-agent.md runs, with the libraries of the extra."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from asyncrl import DQN, PPO, Trainer
from asyncrl.cli.main import main
from asyncrl.envs.source import EnvSource
from asyncrl.errors import EnvironmentNotBuilt, SpacesDoNotFit, UnknownEnvironment

PAGE = Path(__file__).parents[1] / "docs" / "multi-agent.md"
SPREAD, FORAGING = "mpe2:simple_spread_v3", "lbforaging:Foraging-8x8-2p-2f-coop-v3"

pytest.importorskip("pettingzoo")
pytest.importorskip("mpe2")
pytestmark = pytest.mark.usefixtures("short_evaluations")


@pytest.fixture(autouse=True)
def no_display(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")


def test_the_pages_code_trains_and_acts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    shared, by_agent = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), flags=re.M | re.S)
    found: dict[str, Any] = {}
    exec(shared.replace("500_000", "600"), found)
    assert not found["env"].agents and found["rewards"].keys() == {"agent_0", "agent_1", "agent_2"}
    exec(by_agent.replace("1_000_000", "600"), found)
    assert not found["env"].agents and found["rewards"].keys() == {f"adversary_{n}" for n in range(3)} | {
        "agent_0"
    }
    assert found["prey"].predict({"agent_0": found["observations"]["agent_0"]})[0]["agent_0"] in range(5)


def test_spread_is_trained_filmed_and_its_return_is_the_sum(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = str(tmp_path / "run")
    command = [
        "train",
        SPREAD,
        "--algo",
        "dqn",
        "--agent-id",
        "--steps",
        "600",
        "--http",
        "off",
        "--actors",
        "1",
    ]
    assert main([*command, "--run-dir", run, "--target-eval-episodes", "2"]) == 0
    assert main(["enjoy", run, "--video", str(tmp_path / "spread.mp4"), "--episodes", "1"]) == 0
    out = capsys.readouterr().out
    assert "25 steps" in out and "agent_0 -" in out and (tmp_path / "spread.mp4").stat().st_size > 10_000


def test_foraging_is_trained_in_gymnasiums_form() -> None:
    pytest.importorskip("lbforaging")
    result = Trainer(FORAGING, PPO(segment_length=32), num_actors=1, envs_per_actor=4, http="off").learn(400)
    assert result.evaluation is not None
    assert result.evaluation.agent_returns.keys() == {"agent_0", "agent_1"}


def test_speaker_and_listener_share_a_policy_only_if_they_are_padded() -> None:
    source = EnvSource.from_user("mpe2:simple_speaker_listener_v4")
    with pytest.raises(SpacesDoNotFit, match="their observation spaces differ"):
        source.build()
    padded = source.changed({}, (), pad_spaces=True)
    assert [(a.name, a.values, a.choices) for a in padded.build().agents_spec] == [  # type: ignore[union-attr]
        ("speaker_0", 3, 3),
        ("listener_0", None, None),
    ]
    trainer = Trainer(source.name, DQN(learning_starts=100), pad_spaces=True, num_actors=1, http="off")
    assert trainer.learn(total_steps=400).evaluation is not None


def test_games_of_turns_are_refused_and_names_are_answered() -> None:
    aec: Any = pytest.importorskip("pettingzoo.utils.env").AECEnv

    class Turns(aec):  # type: ignore[misc]
        metadata = {"name": "turns"}  # noqa: RUF012
        possible_agents = ("first", "second")

    with pytest.raises(EnvironmentNotBuilt, match=r"The agents of .*Turns take turns"):
        EnvSource.from_user(Turns).build()
    with pytest.raises(UnknownEnvironment) as told:
        EnvSource.from_user("mpe2:simple_spred_v3").build()
    assert "simple_spread_v3" in told.value.fix


def test_environments_of_aec_are_converted_by_pettingzoo() -> None:
    import mpe2.simple_spread_v3 as spread

    from asyncrl.envs.source import describe

    assert describe(EnvSource.from_user(spread.env)).agents == describe(EnvSource.from_user(SPREAD)).agents
