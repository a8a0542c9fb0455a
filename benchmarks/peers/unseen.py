"""Environments that no preset was made for: the half that chooses default options, and the half that judges them.

A few more, `sparse`, have rewards that a random policy hardly ever meets. They are in neither half. Those in `fresh`
were named on 29 November 2026, after all default options were chosen and before any run on them, those in `held_out`
so on 30 November, as two of the former had changed defaults by then.

Both sides of `first_contact.py` see the same environment: where a library cannot take an observation as it is, the
wrapper stands here and is used for all. Imports torch never, and an environment's package only when it is made.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import FlattenObservation, TimeLimit

RIGHT = (0, 1, 1, 0, 0, 1)
"""Right action of each case of `DictBandit`."""
BANDIT_STEPS = 50


class DictBandit(gymnasium.Env[dict[str, Any], np.int64]):
    """Contextual bandit of six cases: one of three kinds, and the sign of the first of two values; the rest is noise.

    Two actions; the right one has reward 1. Neither part of the observation tells anything alone. Every step shows a
    new case, an episode has 50. A policy that loses one of the cases has a return of 41.7.
    """

    def __init__(self) -> None:
        kinds = len(RIGHT) // 2
        self.observation_space = spaces.Dict(
            {"kind": spaces.Discrete(kinds), "vector": spaces.Box(-1.0, 1.0, (2,), np.float32)}
        )
        self.action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._steps = 0
        return self._next(), {}

    def step(self, action: np.int64) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        reward = float(int(action) == self._right)
        self._steps += 1
        return self._next(), reward, False, self._steps == BANDIT_STEPS, {}

    def _next(self) -> dict[str, Any]:
        kind = int(self.np_random.integers(len(RIGHT) // 2))
        values = self.np_random.uniform(-1.0, 1.0, 2).astype(np.float32)
        self._right = RIGHT[2 * kind + int(values[0] > 0)]
        return {"kind": np.int64(kind), "vector": values}


@dataclass(frozen=True)
class Unseen:
    """An environment of the study.

    Attributes:
        half: whether it chooses default options or judges them; or `sparse`, `fresh` or `held_out`.
        family: where it comes from.
        continuous: whether actions are real-valued.
        episodes: greedy episodes of the evaluation at the end of a run.
        share: factor on the number of steps of a run, for slow environments.
        limit: steps after which an episode is truncated; None keeps the environment's own limit.
        flatten: whether observations are flattened, for all sides.
        make: names of a class in a module, `module:Class`, in place of a Gymnasium id.
        kwargs: arguments of the constructor.
    """

    half: Literal["choose", "judge", "sparse", "fresh", "held_out"]
    family: str
    continuous: bool = False
    episodes: int = 30
    share: float = 1.0
    limit: int | None = None
    flatten: bool = False
    make: str = ""
    kwargs: Mapping[str, Any] = field(default_factory=dict)


_SB3 = "stable_baselines3.common.envs"

UNSEEN: Mapping[str, Unseen] = {
    # The half that chooses.
    "CartPole-v1": Unseen("choose", "classic control"),
    "Pendulum-v1": Unseen("choose", "classic control", continuous=True),
    "LunarLander-v3": Unseen("choose", "Box2D"),
    "Hopper-v5": Unseen("choose", "MuJoCo", continuous=True),
    "HalfCheetah-v5": Unseen("choose", "MuJoCo", continuous=True, episodes=10),
    "Ant-v5": Unseen("choose", "MuJoCo", continuous=True, episodes=10),
    "FrozenLake-v1": Unseen("choose", "toy text", episodes=200),
    "Taxi-v4": Unseen("choose", "toy text", episodes=100),
    "MinAtar/Breakout-v1": Unseen("choose", "MinAtar", limit=5_000),
    "MiniGrid-DoorKey-5x5-v0": Unseen("choose", "MiniGrid", flatten=True),
    "FetchReachDense-v4": Unseen("choose", "Gymnasium-Robotics", continuous=True, share=0.5),
    "DictBandit": Unseen("choose", "Dict observations", make=f"{__name__}:DictBandit"),
    "IdentityBox": Unseen(
        "choose", "identity", continuous=True, make=f"{_SB3}:IdentityEnvBox", kwargs={"eps": 0.05}
    ),
    "popgym-NoisyPositionOnlyCartPoleEasy-v0": Unseen("choose", "popgym"),
    # The half that judges.
    "Acrobot-v1": Unseen("judge", "classic control"),
    "MountainCarContinuous-v0": Unseen("judge", "classic control", continuous=True),
    "BipedalWalker-v3": Unseen("judge", "Box2D", continuous=True),
    "Walker2d-v5": Unseen("judge", "MuJoCo", continuous=True),
    "Reacher-v5": Unseen("judge", "MuJoCo", continuous=True),
    "InvertedDoublePendulum-v5": Unseen("judge", "MuJoCo", continuous=True),
    "CliffWalking-v1": Unseen("judge", "toy text", limit=200),
    "Blackjack-v1": Unseen("judge", "toy text", episodes=2_000, flatten=True),
    "MinAtar/SpaceInvaders-v1": Unseen("judge", "MinAtar", limit=5_000),
    "BabyAI-GoToRedBallGrey-v0": Unseen("judge", "BabyAI", flatten=True),
    "PointMaze_UMazeDense-v3": Unseen("judge", "Gymnasium-Robotics", continuous=True, share=0.5, limit=150),
    "highway-fast-v0": Unseen("judge", "highway-env", share=0.1, episodes=20),
    "BitFlipping": Unseen(
        "judge", "bit flipping", make=f"{_SB3}:BitFlippingEnv", kwargs={"n_bits": 6, "max_steps": 12}
    ),
    "popgym-HigherLowerEasy-v0": Unseen("judge", "popgym"),
    # Rare rewards.
    "FrozenLake8x8-v1": Unseen("sparse", "toy text", episodes=200),
    "MiniGrid-DoorKey-6x6-v0": Unseen("sparse", "MiniGrid", flatten=True),
    "MiniGrid-SimpleCrossingS9N1-v0": Unseen("sparse", "MiniGrid", flatten=True),
    "MiniGrid-MultiRoom-N2-S4-v0": Unseen("sparse", "MiniGrid", flatten=True),
    # Named after the defaults were chosen, before any run.
    "Swimmer-v5": Unseen("fresh", "MuJoCo", continuous=True, episodes=10),
    "Pusher-v5": Unseen("fresh", "MuJoCo", continuous=True),
    "AdroitHandDoor-v1": Unseen("fresh", "Gymnasium-Robotics", continuous=True, episodes=10, share=0.5),
    "MiniGrid-LavaGapS6-v0": Unseen("fresh", "MiniGrid", flatten=True),
    "MiniGrid-Dynamic-Obstacles-6x6-v0": Unseen("fresh", "MiniGrid", flatten=True),
    "BabyAI-GoToObj-v0": Unseen("fresh", "BabyAI", flatten=True),
    "popgym-MineSweeperEasy-v0": Unseen("fresh", "popgym", episodes=500),
    "popgym-BattleshipEasy-v0": Unseen("fresh", "popgym", episodes=200),
    "popgym-NoisyPositionOnlyPendulumEasy-v0": Unseen("fresh", "popgym", continuous=True),
    "SimpleMultiObs": Unseen(
        "fresh", "Dict observations", make=f"{_SB3}:SimpleMultiObsEnv", episodes=200, share=0.1
    ),
    "IdentityMultiBinary": Unseen("fresh", "identity", make=f"{_SB3}:IdentityEnvMultiBinary"),
    # Named once more, before any run.
    "LunarLanderContinuous-v3": Unseen("held_out", "Box2D", continuous=True),
    "Humanoid-v5": Unseen("held_out", "MuJoCo", continuous=True, episodes=10, share=0.5),
    "HumanoidStandup-v5": Unseen("held_out", "MuJoCo", continuous=True, episodes=10, share=0.5),
    "FetchPushDense-v4": Unseen("held_out", "Gymnasium-Robotics", continuous=True, share=0.5),
    "AdroitHandPen-v1": Unseen("held_out", "Gymnasium-Robotics", continuous=True, share=0.5),
    "MinAtar/Freeway-v1": Unseen("held_out", "MinAtar", limit=5_000),
    "MinAtar/Seaquest-v1": Unseen("held_out", "MinAtar", limit=5_000),
    "MiniGrid-Empty-Random-6x6-v0": Unseen("held_out", "MiniGrid", flatten=True),
    "MiniGrid-RedBlueDoors-6x6-v0": Unseen("held_out", "MiniGrid", flatten=True),
    "BabyAI-OneRoomS8-v0": Unseen("held_out", "BabyAI", flatten=True),
    "popgym-CountRecallEasy-v0": Unseen("held_out", "popgym", episodes=200),
}


def make(name: str) -> gymnasium.Env[Any, Any]:
    """Make the environment of the study with this name. Raises ImportError or gymnasium's errors if it is absent."""
    unseen = UNSEEN[name]
    if unseen.make:
        env = _class(unseen.make)(**unseen.kwargs)
        if unseen.make.startswith(_SB3):
            env = SeededSpaces(env)
    else:
        _register(name)
        env = gymnasium.make(name, **unseen.kwargs)
    if unseen.family in ("MiniGrid", "BabyAI"):
        from minigrid.wrappers import ImgObsWrapper

        env = ImgObsWrapper(env)
    if unseen.limit is not None:
        env = TimeLimit(env, unseen.limit)
    return FlattenObservation(env) if unseen.flatten else env


class SeededSpaces(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Seed the spaces from which Stable-Baselines3's identity environments draw."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        if seed is not None:
            self.unwrapped.observation_space.seed(seed)
            self.unwrapped.action_space.seed(seed)
        found: tuple[Any, dict[str, Any]] = self.env.reset(seed=seed, options=options)
        return found


def _class(text: str) -> Any:
    import importlib

    module, _, name = text.partition(":")
    return getattr(importlib.import_module(module), name)


def _register(name: str) -> None:
    """Import the package that registers `name`."""
    family = UNSEEN[name].family
    if family == "MinAtar":
        from minatar.gym import register_envs

        if name not in gymnasium.registry:
            register_envs()
    elif family in ("MiniGrid", "BabyAI"):
        import minigrid  # noqa: F401
    elif family == "Gymnasium-Robotics":
        import gymnasium_robotics

        if name not in gymnasium.registry:
            gymnasium.register_envs(gymnasium_robotics)
    elif family == "highway-env":
        import highway_env  # noqa: F401
    elif family == "popgym":
        import popgym  # noqa: F401
