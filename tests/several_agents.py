"""Environments of several agents for tests, without PettingZoo: it is their API alone that counts.

Actors import this module by name; nothing here may import torch.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from gymnasium import Env, spaces
from numpy.typing import NDArray

from asyncrl.interfaces import TERMINATED, TRUNCATED

NAMES = ("red", "green", "blue")


class Parallel:
    """Agents that end one after the other, each at a random step; everything is drawn from the seed of `reset`.

    Observation = (agent, episode, step, last action). An agent's reward is `reward_of`. In some episodes an agent takes
    no part. An agent that has ended is in no result any more.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"], "render_fps": 5}

    def __init__(self, render_mode: str | None = None, names: tuple[str, ...] = NAMES) -> None:
        self.render_mode = render_mode
        self.possible_agents, self.agents = list(names), []
        self.episode = -1
        self.rng = np.random.default_rng(0)

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Box(-1, 1e6, (4,), np.float32)

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Discrete(5)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        if seed is not None:
            self.rng, self.episode = np.random.default_rng(seed), -1
        self.episode += 1
        self.steps = 0
        self.ends = {
            name: (int(self.rng.integers(1, 8)), int(self.rng.integers(1, 4)))
            for name in self.possible_agents
        }
        absent = int(self.rng.integers(2 * len(self.possible_agents)))  # in half of the episodes nobody
        self.agents = [name for n, name in enumerate(self.possible_agents) if n != absent]
        return {name: self.observe(name, -1) for name in self.agents}, {name: {} for name in self.agents}

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        assert actions.keys() == set(self.agents), "the live agents act, and no others"
        self.steps += 1
        acted = self.agents
        ended = {name: self.ends[name][1] if self.steps >= self.ends[name][0] else 0 for name in acted}
        self.agents = [name for name in acted if not ended[name]]
        return (
            {name: self.observe(name, int(actions[name])) for name in acted},
            {name: self.reward_of(name, int(actions[name])) for name in acted},
            {name: bool(ended[name] & TERMINATED) for name in acted},
            {name: bool(ended[name] & TRUNCATED) for name in acted},
            {name: {} for name in acted},
        )

    def observe(self, name: str, action: int) -> Any:
        return np.array([self.possible_agents.index(name), self.episode, self.steps, action], np.float32)

    def reward_of(self, name: str, action: int) -> float:
        """Reward of an agent's step; exact in float32."""
        return self.possible_agents.index(name) + self.steps / 8 - action / 64

    def render(self) -> NDArray[np.uint8]:
        return np.full((32, 32, 3), self.steps, np.uint8)

    def close(self) -> None:
        pass


class Together(Parallel):
    """All agents act for five steps; each earns 1 for the action that is its own index.

    The observation is the same for all, so that only `agent_id` lets one policy act well for all.
    """

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        super().reset(seed)
        self.agents = list(self.possible_agents)
        self.ends = dict.fromkeys(self.agents, (5, TRUNCATED))
        return {name: self.observe(name, -1) for name in self.agents}, {name: {} for name in self.agents}

    def observe(self, name: str, action: int) -> Any:
        return np.array([0, 0, self.steps, 0], np.float32)

    def reward_of(self, name: str, action: int) -> float:
        return float(action == self.possible_agents.index(name))


class Unequal(Together):
    """Agents with vectors of 2, 3 and 4 values and with 5, 3 and 4 actions."""

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Box(-1, 1e6, (2 + self.possible_agents.index(agent),), np.float32)

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Discrete((5, 3, 4)[self.possible_agents.index(agent)])

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        for name, action in actions.items():
            assert self.action_space(name).contains(action), f"{name} cannot do {action}"
        return super().step(actions)

    def observe(self, name: str, action: int) -> Any:
        return np.full(2 + self.possible_agents.index(name), self.steps, np.float32)


class MaskedByInfo(Together):
    """Only the agent's own action is allowed; `info["action_mask"]` says so."""

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        for name, action in actions.items():
            assert action == self.possible_agents.index(name), "the mask forbids it"
        returned = super().step(actions)
        return *returned[:4], {name: self.info(name) for name in returned[4]}

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        observations, _ = super().reset(seed)
        return observations, {name: self.info(name) for name in observations}

    def info(self, name: str) -> dict[str, Any]:
        return {"action_mask": np.eye(5, dtype=np.int8)[self.possible_agents.index(name)]}


class MaskedByKey(MaskedByInfo):
    """The same mask in the observation, as in PettingZoo's classic games."""

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Dict(
            {"observation": super().observation_space(agent), "action_mask": spaces.Box(0, 1, (5,), np.int8)}
        )

    def observe(self, name: str, action: int) -> Any:
        return {"observation": super().observe(name, action), **self.info(name)}

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        observations, _ = super().reset(seed)
        return observations, {name: {} for name in observations}


class Tuples(Env[Any, Any]):
    """Three agents in a gymnasium environment, with Tuple spaces and a reward for each."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": []}

    def __init__(self) -> None:
        self.observation_space = spaces.Tuple([spaces.Box(-9, 9, (2,), np.float32)] * 3)
        self.action_space = spaces.Tuple([spaces.Discrete(4)] * 3)
        self.steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(tuple(action))
        self.steps += 1
        return self._observe(), [float(a) for a in action], self.steps == 4, False, {}

    def _observe(self) -> Any:
        return tuple(np.array([n, self.steps], np.float32) for n in range(3))


class TwoStep(Parallel):
    """The two-step game of Rashid et al. 2018, section 5.1 and table 1.

    The first agent's action in state 1 chooses state 2A, in which every joint action is worth 7, or state 2B, with
    PAYOFF. Both agents see the state, one-hot; the reward goes to the first of them.
    """

    PAYOFF = ((0.0, 1.0), (1.0, 8.0))

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(render_mode, ("first", "second"))

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Box(0, 1, (3,), np.float32)

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Discrete(2)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        self.agents, self.state = list(self.possible_agents), 0
        return self._observed(), {name: {} for name in self.agents}

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        first, second = (int(actions[name]) for name in self.agents)
        reward, over = 0.0, self.state > 0
        if over:
            reward = 7.0 if self.state == 1 else self.PAYOFF[first][second]
            acted, self.agents = self.agents, []
        else:
            acted, self.state = self.agents, 1 + first
        ends, infos = dict.fromkeys(acted, over), {name: {} for name in acted}
        return self._observed(), {"first": reward, "second": 0.0}, ends, dict.fromkeys(acted, False), infos

    def _observed(self) -> dict[str, Any]:
        return {name: np.eye(3, dtype=np.float32)[self.state] for name in self.possible_agents}


class Pursuit(Parallel):
    """Two hunters and a prey, as in MPE's simple_tag: other observations, other real-valued actions, opposite rewards.

    A hunter sees 3 values and has one action, the prey sees 5 and has two. An episode lasts six steps.
    """

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(render_mode, ("hunter_0", "prey", "hunter_1"))

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Box(-9, 9, (5 if agent == "prey" else 3,), np.float32)

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Box(-1, 1, (2,), np.float32) if agent == "prey" else spaces.Box(-3, 0, (1,), np.float32)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        self.agents, self.steps = list(self.possible_agents), 0
        return {name: self.observe(name, 0) for name in self.agents}, {name: {} for name in self.agents}

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        for name, action in actions.items():
            assert self.action_space(name).contains(action), f"{name} cannot do {action}"
        self.steps += 1
        acted, over = self.agents, self.steps == 6
        self.agents = [] if over else acted
        caught = -float(actions["prey"].sum()) + sum(float(actions[n][0]) for n in acted if n != "prey")
        rewards = {name: -caught if name == "prey" else caught for name in acted}
        ends, infos = dict.fromkeys(acted, over), {name: {} for name in acted}
        return {n: self.observe(n, 0) for n in acted}, rewards, dict.fromkeys(acted, False), ends, infos

    def observe(self, name: str, action: int) -> Any:
        return np.full(self.observation_space(name).shape, self.steps, np.float32)


class WithState(Parallel):
    """`Parallel` with a state: (episode, step, number of agents that go on), of which the last is in no observation."""

    state_space = spaces.Box(-1, 1e6, (3,), np.int64)

    def state(self) -> NDArray[np.int64]:
        return np.array([self.episode, self.steps, len(self.agents)])


class Unasked(WithState):
    """Its state must not be asked for."""

    def state(self) -> NDArray[np.int64]:
        raise AssertionError("nobody reads the state")


class Hidden(Parallel):
    """A game of four steps that pays the team +1 or -1 in each, by a coin of its reset that only `state()` shows.

    Actions, one discrete or real-valued, do nothing, and no observation shows the coin. With gamma 1/2 the values of
    the four steps are 1.875, 1.75, 1.5 and 1 times the coin. By observations alone the best prediction is 0.
    """

    state_space = spaces.Box(-1, 4, (2,), np.float32)
    VALUES = (1.875, 1.75, 1.5, 1.0)

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(render_mode, ("first", "second"))

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Box(0, 4, (1,), np.float32)

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Discrete(2)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        self.agents, self.steps = list(self.possible_agents), 0
        self.coin = 2 * int(self.rng.integers(2)) - 1
        return {name: self.observe(name, -1) for name in self.agents}, {name: {} for name in self.agents}

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        self.steps += 1
        acted, over = self.agents, self.steps == 4
        self.agents = [] if over else acted
        rewards = dict.fromkeys(acted, self.coin / 2)
        ends, infos = dict.fromkeys(acted, over), {name: {} for name in acted}
        return {n: self.observe(n, 0) for n in acted}, rewards, ends, dict.fromkeys(acted, False), infos

    def observe(self, name: str, action: int) -> Any:
        return np.array([self.steps], np.float32)

    def state(self) -> NDArray[np.float32]:
        return np.array([self.coin, self.steps], np.float32)


class Password(Parallel):
    """A game of memory: both agents see a cue in the first of five steps, and answer it in the last.

    The team gets 1 if both are right, else -1. Without memory the best is to say always the same: 0 on average.
    """

    DELAY = 4

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(render_mode, ("first", "second"))

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Box(0, 1, (3,), np.float32)

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Discrete(2)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        self.agents, self.steps = list(self.possible_agents), 0
        self.cue = int(self.rng.integers(2))
        return {name: self.observe(name, 0) for name in self.agents}, {name: {} for name in self.agents}

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        acted, over = self.agents, self.steps == self.DELAY
        reward = (1.0 if all(a == self.cue for a in actions.values()) else -1.0) if over else 0.0
        self.steps += 1
        self.agents = [] if over else acted
        rewards, ends = dict.fromkeys(acted, reward / 2), dict.fromkeys(acted, over)
        infos: dict[str, Any] = {name: {} for name in acted}
        return {n: self.observe(n, 0) for n in acted}, rewards, ends, dict.fromkeys(acted, False), infos

    def observe(self, name: str, action: int) -> Any:
        shown, asked = self.steps == 0, self.steps == self.DELAY
        return np.array([shown and self.cue == 0, shown and self.cue == 1, asked], np.float32)
