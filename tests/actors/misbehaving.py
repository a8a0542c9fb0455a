"""Environments that damage their surroundings: their process, helper processes, other parties' memory."""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import fakes
import numpy as np


class DetachesHelper(fakes.SimpleEnv):
    """Environment that starts a daemon: a helper in its own session whose parent ends; observes both process ids."""

    def __init__(self) -> None:
        super().__init__()
        daemon = (
            "import os, sys, time\n"
            "if os.fork(): os._exit(0)\n"
            "os.setsid()\n"
            "print(os.getpid(), flush=True)\n"
            "os.close(1)\n"
            "time.sleep(3600)"
        )
        started = subprocess.run([sys.executable, "-c", daemon], stdout=subprocess.PIPE, check=True)
        self.helper = int(started.stdout)

    def observe(self) -> Any:
        return np.array([os.getpid(), self.helper], np.float32)


class ReadsNull(fakes.SimpleEnv):
    """Environment with a real segmentation fault in its 5th step."""

    def step(self, action: Any) -> Any:
        if self.steps == 4:
            self.follow_a_wild_pointer()
        return super().step(action)

    def follow_a_wild_pointer(self) -> None:
        ctypes.string_at(0)


class Leaks(fakes.SimpleEnv):
    """Environment that keeps 40 MB of every step, but 400 MB at most."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[Any] = []

    def step(self, action: Any) -> Any:
        if len(self.kept) < 10:
            self.kept.append(np.ones(5_000_000))
        return super().step(action)


class Aborts(ReadsNull):
    def follow_a_wild_pointer(self) -> None:
        os.abort()


class OverwritesWeights(ReadsNull):
    """Environment that writes into the first mapping of the weights in its process."""

    def follow_a_wild_pointer(self) -> None:
        maps = Path("/proc/self/maps").read_text()
        found = re.search(r"^([0-9a-f]+)-\S+ .* /memfd:weights", maps, re.MULTILINE)
        assert found is not None
        ctypes.memset(int(found[1], 16), 0xFF, 64)


class CloseRaises(fakes.SimpleEnv):
    def close(self) -> None:
        raise RuntimeError("the window is gone")


class CloseHangs(fakes.SimpleEnv):
    def close(self) -> None:
        while True:
            time.sleep(3600)


class HangsInAnotherGroup(fakes.Hangs):
    """Environment that moves to its parent's process group, where a signal to its own group misses it, and hangs."""

    def wait_for_godot(self) -> None:
        os.setpgid(0, os.getpgid(os.getppid()))
        super().wait_for_godot()


class HangsInReset(fakes.SimpleEnv):
    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        while True:
            time.sleep(3600)


class ForksAndGoesOn(fakes.CountingEnv):
    """Environment that forks in a step; the child returns from it as if it were the actor."""

    def step(self, action: Any) -> Any:
        self.steps_of_all = getattr(self, "steps_of_all", 0) + 1
        if self.steps_of_all == 20:
            os.fork()
        return super().step(action)
