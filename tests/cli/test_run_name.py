"""Names of run directories, and the removal of those whose run failed at once."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from asyncrl.cli.run_name import claim, new_run_dir, remove_if_never_trained
from asyncrl.cli.train import parse

NOW = time.struct_time((2026, 3, 4, 5, 6, 7, 0, 0, 0))


def test_a_name_says_environment_algorithm_seed_and_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASYNCRL_RUNS", str(tmp_path))
    path = new_run_dir("CartPole-v1", "dqn", 3, NOW)
    assert path == tmp_path / "CartPole-v1-dqn-s3-20260304-050607"
    path.mkdir()
    assert claim(path).name == "CartPole-v1-dqn-s3-20260304-050607-2"
    assert claim(path).name == "CartPole-v1-dqn-s3-20260304-050607-3"


def test_commands_of_one_second_have_directories_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASYNCRL_RUNS", str(tmp_path / "runs"))
    named = [new_run_dir("CartPole-v1", "dqn", 3, NOW) for _ in range(3)]
    assert len(set(named)) == 1, "nothing is created when an option may still be wrong"
    claimed = [claim(path) for path in named]
    assert [path.name[-9:] for path in claimed] == ["04-050607", "-050607-2", "-050607-3"]
    assert all(path.is_dir() for path in claimed)
    mine = tmp_path / "mine"
    assert claim(mine) == mine and not mine.exists()
    for path in claimed:  # a command that ends before its run wrote anything
        remove_if_never_trained(path)
        assert not path.exists()


def test_a_folder_that_cannot_be_written_is_left_to_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASYNCRL_RUNS", str(tmp_path / "file"))
    (tmp_path / "file").touch()
    named = new_run_dir("CartPole-v1", "dqn", 3, NOW)
    assert claim(named) == named


@pytest.mark.parametrize(
    ("env", "safe"),
    [
        ("ale_py:ALE/Pong-v5", "ale_py-ALE-Pong-v5"),
        ("../../etc/passwd", "etc-passwd"),
        ("<lambda> in a b", "lambda-in-a-b"),
        ("...", "env"),
    ],
)
def test_an_id_is_made_safe_for_a_file_name(env: str, safe: str) -> None:
    name = new_run_dir(env, "dqn", 0, NOW).name
    assert name == f"{safe}-dqn-s0-20260304-050607"


def test_runs_lie_in_the_working_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ASYNCRL_RUNS")
    config, _ = parse(["Unknown-v0", "--algo", "dqn", "--seed", "4"])
    assert config.run_dir is not None
    assert config.run_dir.startswith("runs/Unknown-v0-dqn-s4-20")


def test_none_keeps_nothing() -> None:
    assert parse(["Unknown-v0", "--algo", "dqn", "--run-dir", "none"])[0].run_dir is None
    assert parse(["Unknown-v0", "--algo", "dqn", "--run-dir", "here"])[0].run_dir == "here"


def left_by_a_run(path: Path, env_steps: int) -> Path:
    (path / "checkpoints").mkdir(parents=True)
    (path / "summary.json").write_text(json.dumps({"env_steps": env_steps}))
    return path


def test_only_a_named_run_without_a_step_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASYNCRL_RUNS", str(tmp_path))
    empty = left_by_a_run(new_run_dir("CartPole-v1", "dqn", 0, NOW), 0)
    remove_if_never_trained(empty)
    assert not empty.exists()
    chosen = left_by_a_run(tmp_path / "mine", 0)
    trained = left_by_a_run(new_run_dir("CartPole-v1", "dqn", 1, NOW), 5)
    saved = left_by_a_run(new_run_dir("CartPole-v1", "dqn", 2, NOW), 0)
    (saved / "checkpoints" / "5").touch()
    elsewhere = left_by_a_run(tmp_path / "other" / trained.name, 0)
    for path in (chosen, trained, saved, elsewhere):
        remove_if_never_trained(path)
        assert path.exists()


def test_the_folder_runs_does_not_stay_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ASYNCRL_RUNS")
    monkeypatch.chdir(tmp_path)
    first, second = (left_by_a_run(new_run_dir("CartPole-v1", "dqn", seed, NOW), 0) for seed in (0, 1))
    remove_if_never_trained(first)
    assert second.exists()
    remove_if_never_trained(second)
    assert list(tmp_path.iterdir()) == []
