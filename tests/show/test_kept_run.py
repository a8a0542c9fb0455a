"""Reading folders in which somebody has put odd things: the other runs are listed, and nothing hangs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from kept_runs import write_run

import asyncrl
from asyncrl.cli.main import main
from asyncrl.show.kept_run import MOST_LINE, KeptRun

PACKAGE = str(Path(asyncrl.__file__).parents[1])
SECONDS = 60
DEEP = "[" * 100_000
FILES = ("config.toml", "summary.json", "metrics.jsonl", "meta.json", ".lock", "http.json")


def make_run(path: Path) -> Path:
    (path / "checkpoints").mkdir(parents=True)
    (path / ".lock").write_text("pid 1 on here")
    (path / "config.toml").write_text('[trainer]\nenv = "CartPole-v1"\nalgo = "dqn"\nseed = 1\n[dqn]\n')
    (path / "metrics.jsonl").write_text('{"time/total_timesteps": 700, "time/time_elapsed": 1.0}\n')
    (path / "summary.json").write_text(
        '{"state": "finished", "env_steps": 700, "eval": {"return_mean": 7.5}}'
    )
    return path


def replaced(path: Path) -> Path:
    path.unlink(missing_ok=True)
    return path


def pipes(run: Path) -> None:
    """Opening one waits for a writer."""
    for name in FILES[1:]:
        os.mkfifo(replaced(run / name))


def links_to_endless_devices(run: Path) -> None:
    for name in FILES[1:]:
        replaced(run / name).symlink_to("/dev/zero")


def a_pipe_for_options(run: Path) -> None:
    os.mkfifo(replaced(run / "config.toml"))


def nested_deep(run: Path) -> None:
    for name in FILES:
        (run / name).write_text(DEEP)
    (run / "config.toml").write_text(f"a = {DEEP}")


def numbers_without_bounds(run: Path) -> None:
    large = "9" * 400
    (run / "config.toml").write_text(f"[trainer]\nseed = {large}\n[dqn]\nx = {2**70}\n")
    entry = f'{{"time/total_timesteps": {large}, "eval/mean_reward": {large}, "time/time_elapsed": 1e999}}\n'
    (run / "metrics.jsonl").write_text(entry)
    (run / "summary.json").write_text(f'{{"env_steps": {large}, "eval": {{"return_mean": {large}}}}}')


def a_line_without_end(run: Path) -> None:
    with (run / "metrics.jsonl").open("a") as file:
        file.truncate(1 << 40)  # holes


def texts_that_are_none(run: Path) -> None:
    (run / "config.toml").write_text('[trainer]\nenv = "a\\u001b[2Jb"\nalgo = "dqn"\n')
    (run / "summary.json").write_text('{"state": "\\ud800", "error": "\\u001b]0;x\\u0007"}')


def a_name_that_is_no_text(run: Path) -> None:
    os.rename(run, os.fsencode(run.parent) + b"/\xff\x1b[2J")


def a_folder_that_cannot_be_read(run: Path) -> None:
    (run / "config.toml").unlink()
    (run / "loop").symlink_to(run)


ODD = (
    pipes,
    links_to_endless_devices,
    a_pipe_for_options,
    nested_deep,
    numbers_without_bounds,
    a_line_without_end,
    texts_that_are_none,
    a_name_that_is_no_text,
    a_folder_that_cannot_be_read,
)


@pytest.fixture
def folder(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """Folder with a sound run and an odd one."""
    make_run(tmp_path / "sound")
    request.param(make_run(tmp_path / "odd"))
    return tmp_path


def within_limit(*arguments: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "PYTHONPATH": PACKAGE}
    return subprocess.run(
        [sys.executable, "-m", "asyncrl", *arguments],
        env=environ,
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )


@pytest.mark.parametrize("folder", [pipes, links_to_endless_devices], indirect=True)
def test_special_files_hang_neither_ls_nor_doctor(folder: Path) -> None:
    listed = within_limit("ls", str(folder))
    assert listed.returncode == 0, listed.stderr
    assert "sound  CartPole-v1  dqn" in listed.stdout
    asked = within_limit("doctor", str(folder / "odd"))
    assert asked.returncode == 0 and "Traceback" not in asked.stderr, asked.stderr


@pytest.mark.parametrize("folder", ODD[2:], indirect=True)
def test_an_odd_run_keeps_no_other_from_being_listed(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ls", str(folder)]) == 0
    text = capsys.readouterr().out
    (line,) = (line for line in text.splitlines() if line.startswith("sound"))
    assert line.split()[1:7] == ["CartPole-v1", "dqn", "1", "finished", "700", "-"]
    assert text.replace("\n", "").isprintable()
    assert main(["ls", str(folder), "--json"]) == 0
    assert "sound" in [run["run"] for run in json.loads(capsys.readouterr().out)]


@pytest.mark.parametrize("folder", ODD[2:], indirect=True)
def test_an_odd_run_is_diagnosed_or_refused_in_words(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in folder.iterdir():
        assert main(["doctor", str(path), "--all"]) in (0, 1)
        printed = capsys.readouterr()
        assert (printed.out + printed.err).replace("\n", "").isprintable()


def test_a_line_longer_than_any_report_is_not_read_whole(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    with (run / "metrics.jsonl").open("a") as file:
        file.write("x" * (3 * MOST_LINE) + '\n{"time/total_timesteps": 800}\n')
    assert [entry["time/total_timesteps"] for entry in KeptRun(run).lines()] == [700, 800]


def ask(url: str, path: str, token: str) -> Any:
    request = urllib.request.Request(f"{url}{path}", headers={"X-Asyncrl-Token": token})
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(
        request, timeout=SECONDS
    ) as answer:
        return json.load(answer)


def test_the_page_of_a_folder_lists_sound_runs_beside_odd_ones_and_ctrl_c_ends_it(tmp_path: Path) -> None:
    make_run(tmp_path / "sound")
    for odd in ODD:
        odd(make_run(tmp_path / odd.__name__))
    environ = {**os.environ, "PYTHONPATH": PACKAGE}
    command = [sys.executable, "-m", "asyncrl", "ui", str(tmp_path)]
    server = subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert server.stdout is not None
    try:
        url, _, token = server.stdout.readline().removeprefix("page ").strip().partition("/#token=")
        found = {run["run"]: run for run in ask(url, "/runs", token)["runs"]}
        assert found["sound"]["env_steps"] == 700
        server.send_signal(signal.SIGINT)
        assert server.wait(SECONDS) == 0
    finally:
        server.kill()
        server.communicate()


def test_a_damaged_address_of_a_page_is_none(tmp_path: Path) -> None:
    for text in ("", "[]", "{}", "null", '{"url": 1}'):
        (tmp_path / "http.json").write_text(text)
        assert KeptRun(tmp_path).page is None


def test_a_damaged_line_of_the_metrics_costs_that_line_alone(tmp_path: Path) -> None:
    run = write_run(tmp_path / "r")
    good = b'{"eval/mean_reward": 7.0, "eval/total_timesteps": 5}\n'
    (run / "metrics.jsonl").write_bytes(good + b"\x00\xff\xfe no text\n" + good)
    assert KeptRun(run).evaluations == [(5, 7.0), (5, 7.0)]
