"""Kill and start again what an actor is at the least, without any code of ours around it, for `faults.py actors`.

A single-threaded process imports what the fork server imports, forks a child that builds and resets the counting
environments and takes one step, and does so again whenever it is asked: it kills the child, reaps it, forks the next.
The time between the kill and the step of the next one is what processor, kernel and environment take on this machine
at this moment; what the product takes beyond it is its own.

    python benchmarks/faults_bare.py ENVS      a byte in: once more; a byte out: the step was taken
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path


class Bare:
    """The process, asked and timed."""

    def __init__(self, envs: int) -> None:
        """Start it; returns when the first child has taken its step."""
        self._process = subprocess.Popen(
            [sys.executable, __file__, str(envs)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,  # as the fork server has one, which a scheduler by sessions sees
            env={
                **os.environ,
                "OMP_NUM_THREADS": "1",
                "PYTHONPATH": str(Path(__file__).resolve().parents[1]),
            },
        )
        self._wait()

    def seconds(self) -> float:
        """Kill the child and have the next one take a step; the time between the two."""
        assert self._process.stdin is not None
        began = time.perf_counter()
        self._process.stdin.write(b"+")
        self._wait()
        return time.perf_counter() - began

    def close(self) -> None:
        """End it, with its child."""
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
    """Serve."""
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
    """Build, reset and step what an actor builds, resets and steps."""
    from faults_env import CountingEnv

    made = [CountingEnv() for _ in range(envs)]
    for env in made:
        env.reset(seed=1)
    for env in made:
        env.step(0)


if __name__ == "__main__":
    main()
