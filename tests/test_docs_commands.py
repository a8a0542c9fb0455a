"""The commands of docs/commands.md run from top to bottom in one folder, with fewer steps."""

from __future__ import annotations

import importlib.util
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from hub_stand_in import hub_stand_in, use_hub
from page_reader import PageReader, snippets
from waiting import PATIENCE_SECONDS, wait_until

from asyncrl.cli.live_runs import live_runs
from asyncrl.groups.launch import free_port

LINES = [
    line
    for language, block in snippets("docs/commands.md")
    if language == "sh"
    for line in block.splitlines()
]
MINE = """
import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv, PendulumEnv
from gymnasium.wrappers import TimeLimit

def MyEnv(size=3):
    return TimeLimit(PendulumEnv(), 10 * size)

def Simulator(num_threads=1):
    return MyEnv()

gymnasium.register("Mine-v0", CartPoleEnv, max_episode_steps=100)
"""
"""The reader's own module, which the page names."""
FEW_STEPS = "--steps 500 --actors 1 --http off --eval-episodes 1 --target-eval-episodes 1"
MORE = {
    "train": FEW_STEPS,
    "train --config": f"{FEW_STEPS} --run-dir runs/other",  # which `diff` compares
    "train --help": "",
    "train CartPole-v1 --algo dqn --steps 50k --seeds": f"{FEW_STEPS} --seeds 2 --jobs 1",
    "tune": "--trials 1 --steps 500 --held-out 0 --jobs 1 --actors 1 --eval-episodes 1 --target-eval-episodes 1",
    "resume": "--steps +200 --http off --eval-episodes 1",
    "eval": "--episodes 2",
    "enjoy": "--episodes 1",
    "record": "--steps 300",
    "push": "--episodes 2",
    "check": "--seconds 0.2",
    "plan": "--seconds 0.2 --cores 1",
    "plan CartPole-v1 --algo ppo --actors": "--seconds 0.2 --actors 1",
}
"""What is added to a command so that it ends soon; the longest name that begins it counts, a later flag wins."""
EXTRAS = {
    "train HalfCheetah": ("mujoco", "mujoco"),
    "(train|plan) LunarLander": ("Box2D", "box2d"),
    "enjoy .* --video": ("imageio_ffmpeg", "video"),
    "export .* --onnx": ("onnx", "onnx"),
    "record .*": ("minari", "data"),
    "push|.* hf://": ("huggingface_hub", "hub"),
    "plot .* --out": ("matplotlib", "plot"),
    "tune .*": ("optuna", "tune"),
}
"""Commands that need a package beyond asyncrl's own, and its extra. Without the package the answer names the extra."""
GOING_ON = ("resume runs/cartpole", "train CartPole-v1 --algo dqn --actors 1 --run-dir none")
"""Runs in other processes, which `ls` lists and `stop` stops; 4711 stands for the second one's process id, which is all
that a run without a directory is found by."""


def missing_extra(line: str) -> str | None:
    """Extra that the command needs and that is not installed."""
    needed = (found for pattern, found in EXTRAS.items() if re.match(f"asyncrl ({pattern})", line))
    return next((extra for package, extra in needed if importlib.util.find_spec(package) is None), None)


@contextmanager
def process(line: str, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command in a process of its own, which Ctrl-C ends if it has not ended."""
    with log.open("wb") as out:
        running = subprocess.Popen(
            [sys.executable, "-m", "asyncrl", *line.split()[1:]], stdout=out, stderr=subprocess.STDOUT
        )
        try:
            yield running
        finally:
            if running.poll() is None:
                running.send_signal(signal.SIGINT)
            running.wait(PATIENCE_SECONDS)


def serve(line: str, log: Path) -> None:
    """Run `asyncrl ui`, open its page and end it by Ctrl-C. Another port is taken where one is named."""
    with process(re.sub(r"--port \d+", f"--port {free_port()}", line), log) as running:
        wait_until(lambda: "Ctrl-C" in log.read_text() or running.poll() is not None, "the page")
        address = re.search(r"http://\S+?(?=/#)", log.read_text())
        assert address, log.read_text()
        with urllib.request.urlopen(address[0], timeout=30) as page:
            assert b"<title>" in page.read()
    assert running.returncode == 0, log.read_text()


@contextmanager
def going_on(folder: Path) -> Iterator[list[int]]:
    """Process ids of `GOING_ON`, all of which take steps. They must end well, having been stopped."""
    logs = [folder / f"{i}.log" for i in range(len(GOING_ON))]
    with ExitStack() as stack:
        runs = [
            stack.enter_context(process(f"asyncrl {line} --steps 50M --http auto", log))
            for line, log in zip(GOING_ON, logs, strict=True)
        ]
        pids = [run.pid for run in runs]

        def all_step() -> bool:
            return {live.pid for live in live_runs() if live.stats.get("env_steps")} >= set(pids)

        wait_until(lambda: all_step() or any(run.poll() is not None for run in runs), "their steps")
        yield pids
        for run, log in zip(runs, logs, strict=True):
            assert run.wait(PATIENCE_SECONDS) in (0, 130), log.read_text()  # by its page, or by SIGINT


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_commands_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ASYNCRL_RUNS")
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    (tmp_path / "my_module.py").write_text(MINE)
    reader = PageReader()
    reader.shell(f"asyncrl train CartPole-v1 --algo dqn --run-dir runs/cartpole {FEW_STEPS}")
    with ExitStack() as others:
        if importlib.util.find_spec("huggingface_hub"):
            use_hub(others.enter_context(hub_stand_in()), tmp_path, monkeypatch)
            others.callback(importlib.import_module("huggingface_hub").close_session)
        for line in LINES:
            if "eval runs/lander" in line and missing_extra("asyncrl train LunarLander-v3"):
                continue  # its run could not be trained
            if line == "asyncrl ls":
                pids = others.enter_context(going_on(tmp_path))
                capsys.readouterr()
            if line.startswith("asyncrl ui"):
                serve(line, tmp_path / "ui.log")
            elif line.startswith("asyncrl stop"):
                reader.shell(line.replace("4711", str(pids[1])).replace("--wait 10", "--wait 60"))
            elif extra := missing_extra(line):
                capsys.readouterr()
                with pytest.raises(AssertionError, match="ended with 1"):
                    reader.shell(line)
                assert f"asyncrl[{extra}]" in capsys.readouterr().err, line
            else:
                name = max((name for name in MORE if line.startswith(f"asyncrl {name}")), key=len, default="")
                reader.shell(f"{line} {MORE.get(name, '')}")
            if line == "asyncrl ls":
                shown = capsys.readouterr().out
                assert all(f"{pid} " in shown for pid in pids)
    for made in ("runs/other/summary.json", "cartpole.mp4", "cartpole.onnx", "curves.png"):
        line = next((line for line in LINES if line.endswith(made)), "")
        assert missing_extra(line) or (tmp_path / made).stat().st_size > 0, made
