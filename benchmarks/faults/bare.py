"""Minimal replacement of a killed process, without asyncrl's code around it, as a reference for `actors`.

A single-threaded process imports what the fork server imports and forks a child, which builds and resets the counting
environments and takes one step. On request it kills the child, reaps it and forks the next. The time between the kill
and the next child's step is the cost of processor, kernel and environment on this machine at this moment; the excess of
asyncrl's time is its own cost.

    python -m benchmarks.faults.bare ENVS      a byte in: replace the child; a byte out: the step was taken
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path


class Bare:
    """Controller of the process; sends requests and times them."""

    def __init__(self, envs: int) -> None:
        """Start the process; returns after the first child's step."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.faults.bare", str(envs)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,  # like the fork server; matters to schedulers that group by session
            env={
                **os.environ,
                "OMP_NUM_THREADS": "1",
                "PYTHONPATH": str(Path(__file__).resolve().parents[2]),
            },
        )
        self._wait()

    def seconds(self) -> float:
        """Replace the child; returns the seconds until the new one has taken its step."""
        assert self._process.stdin is not None
        began = time.perf_counter()
        self._process.stdin.write(b"+")
        self._wait()
        return time.perf_counter() - began

    def close(self) -> None:
        """Kill the process and its child."""
        assert self._process.stdin is not None and self._process.stdout is not None
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def _wait(self) -> None:
        assert self._process.stdout is not None
        if not self._process.stdout.read(1):
            raise SystemExit("the bare fork server ended")


def main() -> None:
    """Serve requests."""
    from asyncrl.actors.forking import _preload

    _preload()
    out, envs, child = sys.stdout.fileno(), int(sys.argv[1]), 0
    while True:
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            step(envs)
            os.write(writer, b".")
            while True:
                signal.pause()
        os.close(writer)
        os.write(out, os.read(reader, 1))
        os.close(reader)
        asked = os.read(0, 1)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        if not asked:
            return


def step(envs: int) -> None:
    """Build, reset and step the environments of an actor."""
    from benchmarks.faults.counting import CountingEnv

    made = [CountingEnv() for _ in range(envs)]
    for env in made:
        env.reset(seed=1)
    for env in made:
        env.step(0)


if __name__ == "__main__":
    main()
