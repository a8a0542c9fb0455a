"""Thirty faulty environments and the leftovers of a run with each of them, for the section `environments`.

Every environment works while it is probed and for `SOUND_STEPS` steps, unless its fault is in construction or in the
first reset, so that there are weights to save when the fault occurs. A class's docstring is its name in the results.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from benchmarks.faults.processes import MARK, marked

SOUND_STEPS = 300
LIMIT_SECONDS = 90.0


class Sound(gymnasium.Env[Any, Any]):
    """Episodes of 20 steps, a reward for action 0. Each class below changes one thing after `SOUND_STEPS` steps."""

    def __init__(self) -> None:
        self.observation_space = gymnasium.spaces.Box(-1.0, 1.0, (3,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)
        self.steps = self.episode_steps = 0

    @property
    def broken(self) -> bool:
        """Whether the fault is due."""
        return self.steps >= SOUND_STEPS

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        """Begin an episode."""
        super().reset(seed=seed)
        self.episode_steps = 0
        return self.observe(), {}

    def step(self, action: Any) -> Any:
        """One step."""
        self.steps += 1
        self.episode_steps += 1
        self.misbehave(action)
        return self.result(float(action == 0))

    def result(self, reward: Any) -> Any:
        """Return value of `step`."""
        return self.observe(), reward, False, self.episode_steps >= 20, {}

    def observe(self) -> Any:
        """The observation."""
        return np.full(3, self.episode_steps / 20, np.float32)

    def misbehave(self, action: Any) -> None:
        """Hook for the fault of most classes."""


class Raises(Sound):
    """Raises in a step."""

    def misbehave(self, action: Any) -> None:
        if self.broken:
            raise RuntimeError("the wheels came off")


class RaisesInReset(Sound):
    """Raises in a reset."""

    def reset(self, **options: Any) -> Any:
        if self.broken:
            raise RuntimeError("no map for this level")
        return super().reset(**options)


class RaisesOnAction(Sound):
    """Raises on an action that a greedy policy avoids."""

    def misbehave(self, action: Any) -> None:
        if self.broken and action == 1:
            raise KeyError("left")


class StrRaises(Sound):
    """Raises an exception whose text cannot be made."""

    class Mute(Exception):
        """An exception whose text cannot be made."""

        def __str__(self) -> str:
            raise ValueError("no words")

    def misbehave(self, action: Any) -> None:
        if self.broken:
            raise self.Mute


class LongMessage(Sound):
    """Raises with a message of 10 MB."""

    def misbehave(self, action: Any) -> None:
        if self.broken:
            raise RuntimeError("x" * 10_000_000)


class ControlCharacters(Sound):
    """Raises with characters that drive a terminal."""

    def misbehave(self, action: Any) -> None:
        if self.broken:
            raise RuntimeError("\x1b[2J\x1b]0;owned\x07")


class Exits(Sound):
    """Calls sys.exit."""

    def misbehave(self, action: Any) -> None:
        if self.broken:
            sys.exit(0)


class LeavesWithoutAWord(Sound):
    """Calls os._exit."""

    def misbehave(self, action: Any) -> None:
        if self.broken:
            os._exit(7)


class Interrupts(Sound):
    """Raises KeyboardInterrupt."""

    def misbehave(self, action: Any) -> None:
        if self.broken:
            raise KeyboardInterrupt


class NaNReward(Sound):
    """A reward that is NaN."""

    def result(self, reward: Any) -> Any:
        return super().result(float("nan") if self.broken else reward)


class HugeReward(Sound):
    """A reward that is infinite in float32."""

    def result(self, reward: Any) -> Any:
        return super().result(1e39 if self.broken else reward)


class TextReward(Sound):
    """A reward that is text."""

    def result(self, reward: Any) -> Any:
        return super().result("1.0" if self.broken else reward)


class NoReward(Sound):
    """A reward that is None."""

    def result(self, reward: Any) -> Any:
        return super().result(None if self.broken else reward)


class NaNObservation(Sound):
    """An observation with NaN."""

    def observe(self) -> Any:
        return np.full(3, np.nan if self.broken else 0.0, np.float32)


class OtherShape(Sound):
    """An observation of another shape."""

    def observe(self) -> Any:
        return np.zeros(4 if self.broken else 3, np.float32)


class OtherType(Sound):
    """An observation of another dtype."""

    def observe(self) -> Any:
        return np.zeros(3, np.float64 if self.broken else np.float32)


class NoObservation(Sound):
    """An observation that is None."""

    def observe(self) -> Any:
        return None if self.broken else np.zeros(3, np.float32)


class FourValues(Sound):
    """A step that returns four values."""

    def result(self, reward: Any) -> Any:
        return (self.observe(), reward, False, {}) if self.broken else super().result(reward)


class BareReset(Sound):
    """A reset that returns the observation alone."""

    def reset(self, **options: Any) -> Any:
        return super().reset(**options)[0]


class SeedlessReset(Sound):
    """A reset that takes no seed."""

    def reset(self) -> Any:  # type: ignore[override]
        return self.observe(), {}


class FailingConstructor(Sound):
    """A constructor that raises."""

    def __init__(self) -> None:
        raise OSError("display :0 is missing")


class HangsInConstructor(Sound):
    """A constructor that does not return."""

    def __init__(self) -> None:
        while True:
            time.sleep(3600)


class HangsInReset(Sound):
    """A first reset that does not return."""

    def reset(self, **options: Any) -> Any:
        while True:
            time.sleep(3600)


class Hangs(Sound):
    """A step that does not return."""

    def misbehave(self, action: Any) -> None:
        while self.broken:
            time.sleep(3600)


class HangsInC(Sound):
    """A step that does not return, deaf to signals, with the interpreter locked."""

    def misbehave(self, action: Any) -> None:
        if self.broken:
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, signal.SIG_IGN)
            library = ctypes.PyDLL(None)  # keeps the interpreter locked during its calls
            while True:
                library.pause()


class ReadsNull(Sound):
    """Dies of a segmentation fault."""

    def misbehave(self, action: Any) -> None:
        if self.broken:
            ctypes.string_at(0)


class Aborts(Sound):
    """Dies of SIGABRT."""

    def misbehave(self, action: Any) -> None:
        if self.broken:
            os.abort()


class ClosesDescriptors(Sound):
    """Closes every descriptor of its process."""

    def misbehave(self, action: Any) -> None:
        if self.broken:
            os.closerange(3, 1024)


class KillsItsGroup(Sound):
    """Sends SIGTERM to its process group."""

    def misbehave(self, action: Any) -> None:
        if self.broken:
            os.killpg(0, signal.SIGTERM)


class Detaches(Sound):
    """Starts a helper in a session of its own, which outlives it, and raises."""

    def misbehave(self, action: Any) -> None:
        if self.broken:
            sleeper = [sys.executable, "-c", "import time; time.sleep(3600)"]
            subprocess.Popen(sleeper, start_new_session=True)
            raise RuntimeError("gone, but my helper is not")


class NeverEnds(Sound):
    """Episodes that never end: no fault, but an evaluation that would not end either."""

    def result(self, reward: Any) -> Any:
        return self.observe(), reward, False, False, {}


CLASSES = {
    name: kind
    for name, kind in list(globals().items())
    if isinstance(kind, type) and issubclass(kind, Sound) and kind is not Sound
}


def run_one(name: str) -> dict[str, Any]:
    """Train DQN in the environment by the command line and collect what is left."""
    token = uuid.uuid4().hex
    root = Path(__file__).resolve().parents[2]
    with tempfile.TemporaryDirectory() as place:
        run = Path(place) / "run"
        line = [
            sys.executable, "-m", "asyncrl", "train", f"benchmarks.faults.environments:{name}", "--algo", "dqn",
            "--run-dir", str(run), "--actors", "1", "--envs-per-actor", "4", "--http", "off",
            "--max-seconds", "15", "--eval-interval-steps", "400", "--eval-episodes", "2",
            "--step-timeout-seconds", "2", "--ready-timeout-seconds", "4", "--eval-max-episode-steps", "200",
            "--dqn.learning-starts", "200", "--dqn.replay-capacity", "4000", "--dqn.samples-per-insert", "8",
        ]  # fmt: skip
        environ = {**os.environ, MARK: token, "PYTHONPATH": str(root), "NO_COLOR": "1"}
        started = time.monotonic()
        main = subprocess.Popen(
            line, cwd=root, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        try:
            said, _ = main.communicate(timeout=LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            main.kill()
            said, _ = main.communicate()
            said += "\nHANGS"
        seconds = time.monotonic() - started
        deadline = time.monotonic() + 2.0
        while (left := marked(token)) and time.monotonic() < deadline:
            time.sleep(0.02)
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return {
            "environment": name,
            "fault": (CLASSES[name].__doc__ or "").rstrip("."),
            "exit_code": main.returncode,
            "codes": sorted(set(re.findall(r"ASYNC\d{3}", said))),
            "seconds": round(seconds, 1),
            "processes_left": len(left),
            "hangs": said.endswith("HANGS"),
            "traceback_of_ours": "Traceback" in said and "remote traceback" not in said,
            "longest_line": max(map(len, said.splitlines()), default=0),
            "control_characters": "\x1b" in said,
            **_files(run),
        }


def _files(run: Path) -> dict[str, Any]:
    from asyncrl.errors import CheckpointError
    from asyncrl.storage.checkpoint import read_policy

    summary = run / "summary.json"
    state = json.loads(summary.read_text()) if summary.exists() else {}
    weights = False
    with contextlib.suppress(CheckpointError):
        read_policy(run / "checkpoints" / "latest")
        weights = True
    return {"weights": weights, "state": state.get("state"), "updates": state.get("updates", 0)}


def table(rows: list[dict[str, Any]]) -> list[list[str]]:
    """The rows as cells of the Markdown table."""
    return [
        [
            row["fault"], ", ".join(row["codes"]) or "-", str(row["exit_code"]), f"{row['seconds']:.1f}",
            f"{row['updates']:,}", "yes" if row["weights"] else "no", str(row["state"]), str(row["processes_left"]),
        ]
        for row in rows
    ]  # fmt: skip
