"""`asyncrl explain`, `presets` and `completion`, against the records, the presets and the table of names."""

from __future__ import annotations

import subprocess
import tomllib
from pathlib import Path

import pytest
from waiting import PATIENCE_SECONDS

from asyncrl.algorithms import ALGORITHMS
from asyncrl.algorithms.other_names import other_names
from asyncrl.algorithms.preset_files import Preset, load_presets
from asyncrl.cli import presets
from asyncrl.cli.explain import RUN, explain
from asyncrl.cli.main import main
from asyncrl.config import TrainerConfig
from asyncrl.options import option_help

NAMES = sorted(
    {name for record in (TrainerConfig, *ALGORITHMS.values()) for name in option_help(record)}  # type: ignore[type-var]
)


@pytest.mark.parametrize("name", [*NAMES, *other_names()])
def test_every_option_and_every_other_name_is_explained(name: str) -> None:
    text, known = explain(name)
    assert known
    assert max(map(len, text.splitlines())) <= 118
    if name in NAMES and name not in other_names():
        assert text.startswith(f"{name}: option of ")


def test_an_explanation() -> None:
    text, _ = explain("samples_per_insert")
    assert text.startswith(
        "samples_per_insert: option of c51, crossq, ddpg, dqn, maddpg, qmix, qrdqn, r2d2, rainbow, sac, td3,\n"
        "  td7, tqc, vdn\n"
    )
    assert explain("--dqn.samples-per-insert")[0].startswith("samples_per_insert: option of dqn\n")
    assert "  flag       --dqn.samples-per-insert X\n" in text
    assert "  python     DQN(samples_per_insert=...)\n" in text
    assert "  file       [dqn] samples_per_insert = ...\n" in text
    assert "  type       a number or none\n" in text
    assert "  range      greater than 0 and finite\n" in text
    assert (
        "16.0 for c51, dqn, maddpg, qmix, qrdqn, rainbow, vdn; 128.0 for crossq, ddpg, sac, td3, td7, tqc"
        in " ".join(text.split())
    )
    assert "  presets    32.0 in CartPole-v1 (c51, dqn, qrdqn, rainbow)" in text
    assert "train_freq" in text


def test_of_one_algorithm_and_of_a_run() -> None:
    text, _ = explain("--PPO.clip-range")
    assert text.startswith("clip_range: option of ppo\n") and "  flag       --ppo.clip-range X\n" in text
    for name in ("--steps", "total_steps", "steps"):
        assert explain(name)[0].startswith("total_steps: option of every run\n")
    assert "  flag       --env-kwargs KEY:VALUE\n" in explain("env_kwargs")[0]


def test_a_name_of_another_library() -> None:
    text, known = explain("buffer_size")
    assert known
    assert text.startswith("buffer_size is a name of other libraries; asyncrl calls it replay_capacity\n\n")
    assert "replay_capacity: option of c51" in text
    assert explain("use_sde") == (
        "use_sde is a name of other libraries: there is no state-dependent exploration",
        True,
    )


def test_an_unknown_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert explain("sampels_per_insert") == (
        "there is no option sampels_per_insert; did you mean samples_per_insert?",
        False,
    )
    assert explain("final_episodes")[0].endswith("did you mean eval_episodes?")
    assert explain("PPO")[0] == "PPO is an algorithm; `asyncrl train --help ppo` lists its options"
    assert explain("ASYNC012")[0].startswith("ASYNC012 is the code of an error")
    assert explain("rollout/ep_len_mean") == (
        "rollout/ep_len_mean is a metric: Mean length of the last 100 training episodes (steps)",
        True,
    )
    assert "docs/metrics.md" in explain("train/approx_kl")[0]
    assert explain("nonsense")[0] == "there is no option nonsense; `asyncrl train --help ALGO` lists them all"
    with pytest.raises(SystemExit) as stop:
        main(["explain", "--sampels-per-insert"])
    assert stop.value.code == 2
    assert "did you mean samples_per_insert?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("owner", "name", "rule"),
    [
        ("dqn", "gamma", "from 0 to 1"),
        ("dqn", "n_step", "from 1 to 255"),
        ("dqn", "tau", "greater than 0 and at most 1"),
        (RUN, "num_actors", "at least 1"),
        ("td3", "policy_delay", "at least 1"),  # another default than the base, whose range holds
        ("crossq", "batch_size", "at least 2"),
        ("ppo", "hidden_sizes", "at least one layer, each at least 1 wide"),
        (RUN, "num_actors", "at least 1"),
        (RUN, "device", ""),
    ],
)
def test_ranges_are_those_of_the_records(owner: str, name: str, rule: str) -> None:
    record = TrainerConfig if owner == RUN else ALGORITHMS[owner]
    assert option_help(record)[name].range == rule
    assert (f"  range      {rule}\n" in explain(f"{owner}.{name}" if owner != RUN else name)[0]) == bool(rule)


@pytest.mark.parametrize("algo", sorted(ALGORITHMS))
def test_the_settings_of_a_preset_are_those_of_a_config_file(
    algo: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = Preset({"hidden_sizes": [8, 8], "double": False}, {"env_pool": "a 'name'", "num_actors": 2})
    monkeypatch.setitem(presets.__dict__, "load_presets", lambda name: {**load_presets(name), "any": text})
    for env, preset in presets.load_presets(algo).items():
        assert tomllib.loads(presets._settings(env, algo)) == {"trainer": preset.run, algo: preset.algorithm}


def test_presets_are_listed_with_what_they_reached(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["presets"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + sum(len(load_presets(algo)) for algo in ALGORITHMS)
    assert max(map(len, lines)) <= 118
    (line,) = (line for line in lines if line.split()[:2] == ["CartPole-v1", "dqn"])
    assert line.endswith(load_presets("dqn")["CartPole-v1"].reached) and "20 of 20 held-out seeds" in line
    assert main(["presets", "PPO"]) == 0
    text = capsys.readouterr().out
    assert "\n[trainer]\nnum_actors" in text and "\n[ppo]\n" in text and "dqn" not in text
    assert main(["presets", "ale/asterix-v5"]) == 0
    assert {line.split()[0] for line in capsys.readouterr().out.splitlines()[1:] if line[:4] == "ALE/"} == {
        "ALE/*"
    }
    with pytest.raises(SystemExit):
        main(["presets", "NoSuch-v0"])


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_completion_knows_commands_and_options(
    capsys: pytest.CaptureFixture[str], shell: str, tmp_path: Path
) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    for word in ("--dqn.learning-rate", "--eval-interval-steps", "--episodes", "presets"):
        assert word in script
    if shell == "bash":
        file = tmp_path / "complete"
        file.write_text(script)
        typed = "COMP_WORDS=(asyncrl train --algo d); COMP_CWORD=3"
        asked = f"source {file}; {typed}; _shtab_asyncrl; echo ${{COMPREPLY[*]}}"
        done = subprocess.run(["bash", "-c", asked], capture_output=True, text=True, timeout=PATIENCE_SECONDS)
        assert done.stdout.split() == ["ddpg", "dqn"], done.stderr


@pytest.mark.parametrize("name", ["n_step", "gamma", "frame_stack", "tau", "batch_size"])
def test_a_range_is_said_once(name: str) -> None:
    text, _ = explain(name)
    description, _, facts = text.partition("  flag ")
    assert (
        facts.count("  range ") == 1 and "at least 1" not in description and "from 0 to 1" not in description
    )
