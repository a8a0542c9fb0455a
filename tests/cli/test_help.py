"""Help: complete, short, and without heavy imports."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import PATIENCE_SECONDS

from asyncrl.algorithms import ALGORITHMS
from asyncrl.cli.flags import UNLISTED, first_clause, metavar
from asyncrl.cli.main import COMMANDS, main
from asyncrl.cli.train_flags import SECTIONS, WITHOUT_HELP, sections
from asyncrl.config import TrainerConfig
from asyncrl.options import Option, option_help

ROOT = Path(__file__).parents[2]


def help_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as stop:
        main([*arguments, "--help"] if "--help" not in arguments else arguments)
    assert stop.value.code == 0
    return capsys.readouterr().out


@pytest.fixture(autouse=True)
def eighty_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def test_help_of_a_run_fits_two_screens(capsys: pytest.CaptureFixture[str]) -> None:
    text = help_of(capsys, "train")
    assert len(text.splitlines()) <= 72
    assert max(map(len, text.splitlines())) <= 84
    for name in option_help(TrainerConfig).keys() - {*WITHOUT_HELP, *UNLISTED}:
        short = {"num_actors": "actors", "total_steps": "steps", "wrappers": "wrapper"}.get(name, name)
        flag = short.replace("_", "-")
        assert f"  --{flag} " in text or f"  --[no-]{flag} " in text
    assert "--dqn." not in text
    for title in SECTIONS:
        assert f"\n{title}:\n" in text


@pytest.mark.parametrize("arguments", [["--help", "dqn"], ["--algo", "DQN", "--help"], ["-h", "--algo=dqn"]])
def test_help_of_an_algorithm_has_its_options_and_no_others(
    capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    text = help_of(capsys, "train", *arguments) if "-h" not in arguments else _short(capsys, arguments)
    for option in option_help(ALGORITHMS["dqn"]).values():
        assert re.search(rf"dqn\.{option.name.replace('_', '-')}\s", text)
    assert "--ppo." not in text and "--steps N" in text


def _short(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> str:
    with pytest.raises(SystemExit):
        main(["train", *arguments])
    return capsys.readouterr().out


def test_sections_hold_every_option_once() -> None:
    listed = [name for names in sections().values() for name in names]
    assert sorted(listed) == sorted(option_help(TrainerConfig).keys() - {*WITHOUT_HELP})
    assert all(sections()[title][0] == first for title, first in SECTIONS.items())


@pytest.mark.parametrize(
    ("text", "clause"),
    [
        ("Random seed; actors use it", "Random seed"),
        ("Environments per actor, which share one pass", "Environments per actor"),
        ("How the target follows: by tau, or by a copy", "How the target follows: by tau, or by a copy"),
        ("First, and second", "First, and second"),
    ],
)
def test_the_first_clause_says_enough(text: str, clause: str) -> None:
    assert first_clause(text) == clause


def test_placeholders_of_values() -> None:
    options = option_help(TrainerConfig)
    assert [metavar(options[name]) for name in ("seed", "device", "http", "run_dir", "max_seconds")] == [
        *("N", "auto|cpu|cuda", "N|auto|off", "TEXT", "X")
    ]
    assert metavar(Option("sizes", tuple[int, ...], (), "", "")) == "N,N"


def test_the_list_of_commands_names_each(capsys: pytest.CaptureFixture[str]) -> None:
    text = help_of(capsys)
    for name, command in COMMANDS.items():
        assert f"  {name} {command.usage}".rstrip() in text and command.help in text
        assert command.help[0].islower() and not command.help.endswith(".")
    assert max(map(len, text.splitlines())) <= 100


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_within_the_screen(capsys: pytest.CaptureFixture[str], name: str) -> None:
    text = help_of(capsys, name)
    assert text.startswith(f"usage: asyncrl {name}")
    assert max(map(len, text.splitlines())) <= 100


QUICK = [["--help"], ["trian"], ["train", "--help", "dqn"], ["explain", "tau"], ["presets"]]


def test_help_and_wrong_commands_load_nothing_heavy() -> None:
    """All in one process: what one of them loads stays."""
    heavy = {"torch", "gymnasium", "numba", "aiohttp", "rich", "matplotlib"}
    commands = [*QUICK, *([name, "--help"] for name in COMMANDS)]
    code = (
        "import sys\nfrom asyncrl.cli.main import main\n"
        f"for arguments in {commands!r}:\n"
        "    try:\n        main(arguments)\n    except SystemExit:\n        pass\n"
        f"    assert not {heavy} & set(sys.modules), arguments\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=PATIENCE_SECONDS
    )
    assert done.returncode == 0, done.stderr


def test_a_wrong_argument_takes_neither_torch_nor_a_process() -> None:
    code = (
        "import sys, subprocess\nfrom asyncrl.cli.main import main\n"
        "subprocess.Popen = None\n"
        "try:\n    main(['train', 'CartPole-v1', '--algo', 'dqn', '--stps', '5'])\n"
        "except SystemExit as stop:\n    print(stop.code, sorted({'torch', 'gymnasium', 'numba'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=PATIENCE_SECONDS
    )
    assert done.stdout == "2 []\n", done.stderr
    assert "unknown option --stps; did you mean --steps?" in done.stderr
