"""Environments whose every step can be recomputed, faulty environments, and a policy of random actions.

Actors import this module by name; nothing here may import torch.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray

from asyncrl.interfaces import RESET, TERMINATED, TRUNCATED


class RandomPolicy:
    """Uniform actions out of `num_actions`; writes its inputs to the rows for tests."""

    def __init__(self, num_actions: int = 5, weight_count: int = 3) -> None:
        self.num_actions = num_actions
        self.weight_count = weight_count
        self.exploration_rate = 0.25
        self.frame_stack = 1
        self.streams = (0, 0, 0)
        self.weights = np.zeros(weight_count, np.float32)
        self.changes = 0

    def assign_streams(self, first: int, count: int, total: int) -> None:
        self.streams = (first, count, total)

    def load_weights(self, weights: NDArray[np.float32]) -> None:
        self.weights[:] = weights
        self.weights_changed()

    def weights_changed(self) -> None:
        self.changes += 1

    def act(
        self, obs: NDArray[Any], rng: np.random.Generator, total_steps: int
    ) -> tuple[NDArray[Any], dict[str, Any]]:
        return rng.integers(0, self.num_actions, obs.shape[0]), {}

    def greedy(self, obs: NDArray[Any]) -> NDArray[Any]:
        return np.full(obs.shape[0], int(self.weights[0]) % self.num_actions)


class EchoPolicy(RandomPolicy):
    """Fills one extra field with the first weight and the stream's index."""

    def act(
        self, obs: NDArray[Any], rng: np.random.Generator, total_steps: int
    ) -> tuple[NDArray[Any], dict[str, Any]]:
        actions, _ = super().act(obs, rng, total_steps)
        first, count, _ = self.streams
        echo = np.stack([np.full(count, self.weights[0]), np.arange(first, first + count)], axis=1)
        return actions, {"echo": echo.astype(np.float32)}


class CountingEnv(gymnasium.Env[Any, Any]):
    """Observation = (env, episode, step, last action); everything else follows from it by arithmetic."""

    built: ClassVar[Iterator[int]] = itertools.count()

    def __init__(self) -> None:
        self.observation_space = Box(-1.0, np.inf, (4,), np.float32)
        self.action_space = Discrete(5, start=1)
        self.index = next(CountingEnv.built)
        self.episode, self.step_number, self.last_action = -1, 0, -1

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.episode, self.step_number, self.last_action = self.episode + 1, 0, -1
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action)
        self.step_number += 1
        self.last_action = int(action)
        flags = counting_flags(self.index, self.episode, self.step_number)
        reward = counting_reward(self.index, self.episode, self.step_number)
        return self._observe(), reward, bool(flags & TERMINATED), bool(flags & TRUNCATED), {}

    def _observe(self) -> NDArray[np.float32]:
        return np.array([self.index, self.episode, self.step_number, self.last_action], np.float32)


def counting_reward(index: int, episode: int, step: int) -> float:
    """Reward of a step; exact in float32."""
    return index + episode % 64 / 64 - step / 4


def counting_flags(index: int, episode: int, step: int) -> int:
    """Flags of a step: episodes of 1 to 5 steps end terminated, truncated or both in turn."""
    if step < 1 + (7 * index + 3 * episode) % 5:
        return 0
    return (TERMINATED, TRUNCATED, TERMINATED | TRUNCATED)[episode % 3]


def counting_rows(index: int) -> Iterator[tuple[tuple[int, int, int], float, int]]:
    """Row by row of one stream: ((env, episode, step) observed, reward, flags)."""
    for episode in itertools.count():
        step, flags = 0, 0
        while not flags:
            flags = counting_flags(index, episode, step + 1)
            yield (index, episode, step), counting_reward(index, episode, step + 1), flags
            step += 1
        yield (index, episode, step), 0.0, RESET


class SimpleEnv(gymnasium.Env[Any, Any]):
    """Environment that never ends or fails; each faulty one below changes one property."""

    dtype: Any = np.float32
    shape: tuple[int, ...] = (2,)

    def __init__(self) -> None:
        self.observation_space = Box(-np.inf, np.inf, self.shape, self.dtype)
        self.action_space = Discrete(5)
        self.steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        super().reset(seed=seed)
        return self.observe(), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        return self.observe(), 1.0, False, False, {}

    def observe(self) -> Any:
        return np.full(self.shape, self.steps, self.dtype)


class Raises(SimpleEnv):
    """Environment that raises an exception with two arguments in its 7th step."""

    def step(self, action: Any) -> Any:
        if self.steps == 6:
            raise UnicodeTranslateError("x", 0, 1, "the wheels came off")
        return super().step(action)


class RaisesInReset(SimpleEnv):
    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        raise RuntimeError("no map for this level")


class Interrupts(SimpleEnv):
    def step(self, action: Any) -> Any:
        raise KeyboardInterrupt


class NaNReward(SimpleEnv):
    def step(self, action: Any) -> Any:
        obs, reward, *rest = super().step(action)
        return (obs, float("nan") if self.steps == 4 else reward, *rest)


class InfiniteObservation(SimpleEnv):
    def observe(self) -> Any:
        return np.array([0.0, np.inf if self.steps == 4 else 0.0], np.float32)


class HugeReward(SimpleEnv):
    """Environment with a reward that is finite in float64 and infinite in a ring's float32."""

    def step(self, action: Any) -> Any:
        obs, _, *rest = super().step(action)
        return (obs, 1e39, *rest)


class FloatForByte(SimpleEnv):
    """Environment that declares bytes and returns floats from step `first` on."""

    first = 0

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = Box(0, 255, (2,), np.uint8)

    def observe(self) -> Any:
        return np.zeros(2, np.float32 if self.steps >= self.first else np.uint8)


class FloatForByteLater(FloatForByte):
    first = 4


class FlatObservation(SimpleEnv):
    shape = (2, 3)

    def observe(self) -> Any:
        return np.zeros(6, np.float32)


class RaggedObservation(SimpleEnv):
    def observe(self) -> Any:
        return [[0.0], [0.0, 1.0]]


class DoubleSpace(SimpleEnv):
    """Environment with float64 throughout, which is valid."""

    dtype = np.float64

    def observe(self) -> Any:
        return np.full(2, self.steps + 0.5)


class FourValues(SimpleEnv):
    def step(self, action: Any) -> Any:
        return self.observe(), 1.0, False, {}


class ArrayReward(SimpleEnv):
    def step(self, action: Any) -> Any:
        return self.observe(), np.ones(1), False, False, {}


class BareReset(SimpleEnv):
    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return self.observe()


class SeedlessReset(SimpleEnv):
    def reset(self) -> Any:  # type: ignore[override]
        return self.observe(), {}


class FailingConstructor(SimpleEnv):
    def __init__(self) -> None:
        raise OSError("display :0 is missing")


class OldGymEnv:
    """Environment not derived from gymnasium.Env."""

    def reset(self) -> Any:
        return np.zeros(2)

    def step(self, action: Any) -> Any:
        return np.zeros(2), 0.0, False, {}


class Hangs(SimpleEnv):
    """Environment whose 5th step does not return."""

    def step(self, action: Any) -> Any:
        if self.steps == 4:
            self.wait_for_godot()
        return super().step(action)

    def wait_for_godot(self) -> None:
        while True:
            time.sleep(3600)


class HangsInC(Hangs):
    """The same, ignoring every signal but SIGKILL and with the interpreter locked."""

    def wait_for_godot(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        libc = ctypes.PyDLL(None)  # PyDLL keeps the interpreter locked while it calls
        while True:
            libc.pause()


class HangsWhenBuilt(SimpleEnv):
    def __init__(self) -> None:
        while True:
            time.sleep(3600)


class Segfaults(SimpleEnv):
    """Environment that dies of SIGSEGV in its 5th step."""

    def step(self, action: Any) -> Any:
        if self.steps == 4:
            os.kill(os.getpid(), signal.SIGSEGV)
        return super().step(action)


class LeavesWithoutAWord(SimpleEnv):
    def step(self, action: Any) -> Any:
        os._exit(7)


class StartsHelper(SimpleEnv):
    """Environment with a helper process in the actor's group, as simulators have; observes both process ids."""

    def __init__(self) -> None:
        super().__init__()
        self.helper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])

    def observe(self) -> Any:
        return np.array([os.getpid(), self.helper.pid], np.float32)


class ShowsProcess(SimpleEnv):
    """Observation: whether torch is imported, whether SIGINT is ignored, threads, private megabytes, niceness."""

    shape = (5,)

    def observe(self) -> Any:
        ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        threads = len(os.listdir("/proc/self/task"))
        return np.array(
            ["torch" in sys.modules, ignored, threads, private_megabytes(), os.nice(0)], np.float32
        )


def private_megabytes() -> float:
    """Memory of this process that is not shared."""
    with open("/proc/self/smaps_rollup") as lines:
        return sum(int(line.split()[1]) for line in lines if line.startswith("Private")) / 1024


class Talks(SimpleEnv):
    def __init__(self) -> None:
        super().__init__()
        print("hello from the environment", flush=True)
        print("and its error stream", file=sys.stderr, flush=True)


class FixedLength(SimpleEnv):
    """Episodes of 3 steps, truncated; observation = step in the episode."""

    length = 3

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.steps = 0
        return super().reset(seed=seed)

    def step(self, action: Any) -> Any:
        obs, reward, _, _, info = super().step(action)
        return obs, reward, False, self.steps == self.length, info


class PaysAction(FixedLength):
    """Environment whose reward is the action."""

    def step(self, action: Any) -> Any:
        obs, _, *rest = super().step(action)
        return obs, float(action), *rest
