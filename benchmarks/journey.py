"""A new user's first hour without the waiting: the README's commands in a new folder, with the duration of each.

Trains, lists, resumes, evaluates, films, plots, explains, exports, and loads without torch. A step that fails ends the
script with its output. The tests cover the interactive part (terminal, page, Ctrl-C, notebook).

    python benchmarks/journey.py [--out benchmarks/results/journey.md]
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
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


def timed(command: list[str], folder: Path) -> tuple[float, float]:
    """Run a command; returns its seconds and the CPU seconds of its processes. Raises SystemExit if it fails."""
    program = [sys.executable, *(["-m", "asyncrl"] if command[0] == "asyncrl" else [])]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "NO_COLOR": "1", "SDL_VIDEODRIVER": "dummy"}
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run([*program, *command[1:]], cwd=folder, env=env, capture_output=True, text=True)
    seconds, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}\n{done.stdout}{done.stderr}")
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def shown(command: list[str]) -> str:
    """Command line in the form of the table."""
    return "`python -c ...`" if command[0] == "python" else f"`{' '.join(command)}`"


def main() -> None:
    """Run all steps, print the table, and write it to the file of `--out`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    load = os.getloadavg()[0]
    lines = ["| step | command | seconds | CPU seconds |", "| --- | --- | ---: | ---: |"]
    with tempfile.TemporaryDirectory() as folder:
        for step, command in STEPS.items():
            seconds, cpu = timed(command, Path(folder))
            lines.append(f"| {step} | {shown(command)} | {seconds:.1f} | {cpu:.1f} |")
            print(lines[-1], flush=True)
    if arguments.out:
        head = "# A new user's journey\n\nBy `python benchmarks/journey.py --out benchmarks/results/journey.md`. "
        about = (
            f"Load when it began: {load:.0f} on {os.cpu_count()} cores. Above one for each core, seconds say "
        )
        about += "little and CPU seconds more.\n\n"
        arguments.out.write_text(head + about + "\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
