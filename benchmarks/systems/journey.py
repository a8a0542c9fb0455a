"""A new user's first hour without the waiting: from a clone, by the README's commands, with the duration of each.

Clones this repository, makes a virtual environment, installs by README's line, and then trains, watches the terminal
and the page, presses Ctrl-C, resumes, evaluates, films, plots, exports, and loads without torch. A step that fails ends
the script with its output. Notebooks are run by `tests/test_notebooks.py`, page and terminal in
all their states by `tests/server/test_page_in_browser.py` and `tests/cli`.

    python -m benchmarks.systems.journey [--out benchmarks/results/journey.md]
    python -m benchmarks.systems.journey --here       # without clone and installation: this interpreter and this tree
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import pty
import resource
import select
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RUN = "runs/cartpole"
WITHOUT_TORCH = (
    "import sys; sys.modules['torch'] = None; import numpy as np, asyncrl; "
    "print(asyncrl.load('p.policy').predict(np.zeros(4, np.float32), deterministic=True)[0])"
)
SAVE = f"import asyncrl; asyncrl.load('{RUN}').save('p.policy')"
ONNX = (
    "import numpy as np, onnxruntime as o; s = o.InferenceSession('p.onnx'); "
    "print([x.shape for x in s.run(None, {s.get_inputs()[0].name: np.zeros((1, 4), np.float32)})])"
)
STEPS = {
    "list the commands": ["asyncrl", "--help"],
    "look at the environment": ["asyncrl", "check", "CartPole-v1"],
    "train": [
        *("asyncrl", "train", "CartPole-v1", "--algo", "ppo", "--steps", "50k", "--run-dir", RUN),
        *("--http", "off"),
    ],
    "compile nothing the second time": [
        *("asyncrl", "train", "CartPole-v1", "--algo", "ppo", "--steps", "20k", "--http", "off"),
    ],
    "list the runs": ["asyncrl", "ls"],
    "resume": ["asyncrl", "resume", RUN, "--steps", "+10k", "--http", "off"],
    "evaluate": ["asyncrl", "eval", RUN],
    "film": ["asyncrl", "enjoy", RUN, "--video", "out.mp4", "--episodes", "1"],
    "plot in the terminal": ["asyncrl", "plot", RUN],
    "plot as a picture": ["asyncrl", "plot", RUN, "--out", "curve.png"],
    "ask what is wrong": ["asyncrl", "doctor", RUN],
    "explain an option": ["asyncrl", "explain", "learning_rate"],
    "export": ["asyncrl", "export", RUN, "--onnx", "p.onnx"],
    "act by ONNX": ["python", "-c", ONNX],
    "save the policy": ["python", "-c", SAVE],
    "load and act without torch": ["python", "-c", WITHOUT_TORCH],
}
"""Command line of every step."""


INSTALL = {
    "clone": ["git", "clone", "--quiet", str(ROOT), "."],
    "make an environment": [sys.executable, "-m", "venv", "venv"],
    "install": [
        *("venv/bin/pip", "install", "--quiet", "--disable-pip-version-check", "-c", "constraints-cpu.txt"),
        ".[box2d,plot,video,onnx]",
    ],
    "install a runtime for ONNX": ["venv/bin/pip", "install", "--quiet", "onnxruntime"],
}
LIVE = ["asyncrl", "train", "CartPole-v1", "--algo", "dqn", "--steps", "10m", "--run-dir", "runs/live"]
PATIENCE_SECONDS = 120.0


class User:
    """Someone in a folder with an interpreter; every step of his is timed.

    Args:
        folder: working directory.
        here: use this interpreter and this tree; otherwise the virtual environment in the folder.
    """

    def __init__(self, folder: Path, here: bool) -> None:
        self.folder = folder
        self._python = sys.executable if here else str(folder / "venv" / "bin" / "python")
        self.env = {**os.environ, "NO_COLOR": "1", "SDL_VIDEODRIVER": "dummy"}
        self.env.pop("PYTHONPATH", None)
        if here:
            self.env["PYTHONPATH"] = str(ROOT)

    def line(self, command: list[str]) -> list[str]:
        """The command with this user's interpreter in place of `asyncrl` and `python`."""
        if command[0] not in ("asyncrl", "python"):
            return command
        return [self._python, *(["-m", "asyncrl"] if command[0] == "asyncrl" else []), *command[1:]]

    def run(self, command: list[str]) -> str:
        """Run a command to its end; returns its output. Raises SystemExit if it fails."""
        done = subprocess.run(
            self.line(command), cwd=self.folder, env=self.env, capture_output=True, text=True
        )
        if done.returncode:
            raise SystemExit(f"{' '.join(command)} ended with {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout

    def watch(self) -> None:
        """Train in a terminal of 80x24, read the page, press Ctrl-C, and see exit code 130 and a summary."""
        process, screen = self._in_terminal(LIVE)
        try:
            until(screen, lambda text: "updates/s" in text and "http://127.0.0.1:" in text)
            place = json.loads((self.folder / "runs/live/http.json").read_text())
            with urllib.request.urlopen(place["url"].rstrip("/") + "/stats", timeout=10) as answer:
                assert json.load(answer)["algo"] == "dqn"
            process.send_signal(signal.SIGINT)
            until(screen, lambda _: process.poll() is not None)
        finally:
            process.kill()
            os.close(screen)
        summary = json.loads((self.folder / "runs/live/summary.json").read_text())
        assert (process.wait(), summary["state"]) == (130, "interrupted"), summary

    def stop(self) -> None:
        """Go on with that run in the background and end it with `asyncrl stop`."""
        line = self.line(["asyncrl", "resume", "runs/live"])
        process = subprocess.Popen(line, cwd=self.folder, env=self.env, stdout=subprocess.DEVNULL)
        try:
            deadline = time.monotonic() + PATIENCE_SECONDS
            while not (self.folder / "runs/live/http.json").exists() and time.monotonic() < deadline:
                time.sleep(0.1)
            self.run(["asyncrl", "stop", "runs/live"])
            assert process.wait(PATIENCE_SECONDS) == 0
        finally:
            process.kill()

    def _in_terminal(self, command: list[str]) -> tuple[subprocess.Popen[bytes], int]:
        """The running command and the other side of its terminal."""
        own, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        env = {**self.env, "TERM": "xterm-256color"}
        process = subprocess.Popen(
            self.line(command), cwd=self.folder, env=env, stdin=theirs, stdout=theirs, stderr=theirs
        )
        os.close(theirs)
        return process, own


def until(terminal: int, condition: Callable[[str], bool]) -> None:
    """Read a terminal until its text meets a condition."""
    text, deadline = "", time.monotonic() + PATIENCE_SECONDS
    while not condition(text):
        if time.monotonic() > deadline:
            raise SystemExit(f"waited in vain at the terminal:\n{text[-4000:]}")
        if select.select([terminal], [], [], 0.1)[0]:
            try:
                text += os.read(terminal, 1 << 16).decode(errors="replace")
            except OSError:  # the other side is closed
                time.sleep(0.05)


def timed(step: Callable[[], object]) -> tuple[float, float]:
    """Make a step; returns its seconds and the CPU seconds of its processes."""
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    step()
    seconds, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def shown(command: list[str]) -> str:
    """Command line in the form of the table."""
    if command[0] == "python":
        return "`python -c ...`"
    return f"`{' '.join(command).replace(str(ROOT), 'REPOSITORY').replace(sys.executable, 'python')}`"


def main() -> None:
    """Run all steps, print the table, and write it to the file of `--out`; sections after it there stay."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--here", action="store_true")
    arguments = parser.parse_args()
    load = os.getloadavg()[0]
    lines = ["| step | command | seconds | CPU seconds |", "| --- | --- | ---: | ---: |"]
    with tempfile.TemporaryDirectory() as folder:
        user = User(Path(folder), arguments.here)
        steps: list[tuple[str, str, Callable[[], object]]] = []
        for name, command in (({} if arguments.here else INSTALL) | STEPS).items():
            steps.append((name, shown(command), lambda command=command: user.run(command)))  # type: ignore[misc]
        steps.append(("terminal of 80x24, page, Ctrl-C", shown(LIVE), user.watch))
        steps.append(("resume it, and stop it from outside", "`asyncrl resume`, `asyncrl stop`", user.stop))
        for name, command_text, step in steps:
            seconds, cpu = timed(step)
            lines.append(f"| {name} | {command_text} | {seconds:.1f} | {cpu:.1f} |")
            print(lines[-1], flush=True)
    if arguments.out:
        head = "# A new user's journey\n\nBy `python -m benchmarks.systems.journey --out FILE`. "
        about = (
            f"Load when it began: {load:.0f} on {os.cpu_count()} cores. Above one for each core, seconds say "
        )
        about += "little and CPU seconds more.\n\n"
        notes = "".join(arguments.out.read_text().partition("\n## ")[1:]) if arguments.out.exists() else ""
        arguments.out.write_text(head + about + "\n".join(lines) + "\n" + notes, encoding="utf-8")


if __name__ == "__main__":
    main()
