"""docs/commands.md has a section for every command; examples parse, those of README, front page and Dockerfile too."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from kept_runs import write_run

from asyncrl.cli.main import COMMANDS
from asyncrl.errors import ConfigurationError

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
FIRST = "".join((ROOT / page).read_text(encoding="utf-8") for page in ("README.md", "docs/index.md"))
EXAMPLES = [
    line
    for block in re.findall(r"^```sh\n(.*?)^```", TEXT + FIRST, flags=re.M | re.S)
    for line in block.splitlines()
    if line.startswith("asyncrl ")
]
EXAMPLES += re.findall(r"\basyncrl (?:train|ui) [^&\n\"]+", (ROOT / "Dockerfile").read_text(encoding="utf-8"))


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs that the page names, in the working directory."""
    monkeypatch.chdir(tmp_path)
    for name in ("cartpole", "other"):
        write_run(tmp_path / "runs" / name, summary={"env_steps": 100})


def test_every_command_has_a_section_with_examples() -> None:
    sections = re.split(r"^## ", TEXT, flags=re.M)[1:]
    shown = {section.split()[0]: section for section in sections}
    for name in COMMANDS:
        assert f"asyncrl {name}" in shown[name], f"docs/commands.md does not show {name}"
    assert set(shown) <= {*COMMANDS, "resume"}


@pytest.mark.parametrize("line", EXAMPLES)
def test_every_example_is_understood(line: str, runs: None, capsys: pytest.CaptureFixture[str]) -> None:
    _, name, *arguments = shlex.split(line, comments=True)
    if name not in COMMANDS:
        pytest.skip(f"{name} is not a command of this version")
    try:
        COMMANDS[name].parse(arguments)
    except SystemExit as stop:
        assert stop.code == 0 and "--help" in arguments, capsys.readouterr().err
    except ConfigurationError as refused:  # what the page trains, other lines evaluate
        assert name == "train" and "holds a run" in str(refused)


def test_the_examples_are_many() -> None:
    assert len(EXAMPLES) > 30
    assert {line.split()[1] for line in EXAMPLES} >= set(COMMANDS)
