"""`asyncrl resume`: its arguments; test_cli_run.py continues interrupted and killed runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from asyncrl.cli.main import main
from asyncrl.cli.resume import parse


def test_wrong_arguments(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for arguments, text in (
        (["resume"], "the following arguments are required: RUN"),
        (["resume", str(tmp_path), "--seed", "1"], "it may not change when a run goes on"),
        (["resume", str(tmp_path), "--stepz", "1"], "did you mean --steps?"),
    ):
        with pytest.raises(SystemExit) as stop:
            main(arguments)
        assert stop.value.code == 2
        assert text in capsys.readouterr().err
    assert main(["resume", str(tmp_path)]) == 1
    assert "there is no run in" in capsys.readouterr().err


def test_options_are_those_that_may_change() -> None:
    options = parse(["runs/x", "--steps", "+1k", "--http", "off", "--new-episodes"])
    assert (options.run, options.steps, options.restore_episodes) == (Path("runs/x"), "+1k", False)
    assert options.changes == {"http": "off"}
