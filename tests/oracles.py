"""Slow references of the fast parts, written for readability; the kernels must agree with them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncrl.interfaces import FROZEN, RESET, TERMINATED, TRUNCATED


class SlowSumTree:
    """List of priorities."""

    def __init__(self, capacity: int) -> None:
        self.leaves = [0.0] * capacity

    def set(self, indices: NDArray[np.int64], values: NDArray[Any]) -> None:
        for index, value in zip(indices.tolist(), values.tolist(), strict=True):
            self.leaves[index] = float(np.float32(value))

    def set_range(self, start: int, stop: int, value: float) -> None:
        for index in range(start, stop):
            self.leaves[index] = float(np.float32(value))

    @property
    def total(self) -> float:
        return sum(self.leaves)

    def find(self, target: float) -> int:
        """Leaf whose half-open interval of the cumulated priorities contains `target`."""
        reached = 0.0
        for index, value in enumerate(self.leaves):
            reached += value
            if target < reached:
                return index
        return max(index for index, value in enumerate(self.leaves) if value > 0.0)

    def sample(self, uniforms: NDArray[np.float64]) -> list[int]:
        size, total = len(uniforms), self.total
        return [self.find((i + u) * (total / size)) for i, u in enumerate(uniforms.tolist())]


@dataclass
class SlowRow:
    """One step of all E environments, kept permanently."""

    obs: NDArray[Any]
    action: NDArray[Any]
    reward: NDArray[np.float32]
    flags: NDArray[np.uint8]
    version: int
    policy_updates: int
    incarnation: int
    extras: dict[str, NDArray[Any]] = field(default_factory=dict)
    state: NDArray[np.float32] | None = None


@dataclass
class SlowTransition:
    """Contents that a batch must have for one item."""

    obs: NDArray[Any]
    action: NDArray[Any]
    reward: float
    discount: float
    next_obs: NDArray[Any]
    version: int
    policy_updates: int
    extras: dict[str, NDArray[Any]]


def slow_n_step(rows: list[SlowRow], i: int, env: int, n_step: int, gamma: float) -> tuple[float, float, int]:
    """(return, discount, bootstrap row) of row `i`, computed reward by reward from the definition."""
    rewards: list[float] = []
    bootstrap, terminated = i + n_step, False
    for row in range(i, i + n_step):
        if rows[row + 1].incarnation != rows[i].incarnation:
            bootstrap = row  # its action's outcome was never seen
            break
        rewards.append(float(rows[row].reward[env]))
        if rows[row].flags[env] & (TERMINATED | TRUNCATED):
            bootstrap, terminated = row + 1, bool(rows[row].flags[env] & TERMINATED)
            break
    total = sum(gamma**k * reward for k, reward in enumerate(rewards))
    return total, 0.0 if terminated else gamma ** len(rewards), bootstrap


def slow_trained(rows: list[SlowRow], i: int, env: int) -> bool:
    """Whether the action of row `i` was taken and its successor observed."""
    return rows[i].incarnation == rows[i + 1].incarnation and not rows[i].flags[env] & (RESET | FROZEN)


def slow_begins(rows: list[SlowRow], i: int, env: int) -> bool:
    """Whether an episode or an actor's life begins at row `i`."""
    return i == 0 or rows[i - 1].incarnation != rows[i].incarnation or bool(rows[i - 1].flags[env] & RESET)


def slow_stack(rows: list[SlowRow], i: int, env: int, frames: int) -> NDArray[Any]:
    """`[frames, *obs_shape]`, newest last; a younger episode repeats its first frame."""
    first = i
    while first > 0 and rows[first - 1].incarnation == rows[i].incarnation:
        if rows[first - 1].flags[env] & RESET:
            break
        first -= 1
    return np.stack([rows[max(first, i - back)].obs[env] for back in range(frames - 1, -1, -1)])


class SlowReplay:
    """Every row of every ring since the start, and a dictionary of priorities."""

    def __init__(
        self,
        num_rings: int,
        num_envs: int,
        num_slots: int,
        *,
        n_step: int,
        gamma: float,
        alpha: float,
        eps: float,
        frame_stack: int = 1,
        window: int = 1_000,
        burn_in: int = 0,
        length: int = 1,
        period: int = 1,
        num_agents: int = 1,
        joint: bool = False,
        of_team: bool = False,
    ) -> None:
        self.num_agents, self.of_team = num_agents, of_team
        self.streams_of_item = num_agents if joint else 1
        self.burn_in, self.length, self.period = burn_in, length, period
        self.rows: list[list[SlowRow]] = [[] for _ in range(num_rings)]
        self.num_envs, self.num_slots = num_envs, num_slots
        self.n_step, self.gamma, self.alpha, self.eps = n_step, gamma, alpha, eps
        self.frame_stack = frame_stack
        self.seen = [0] * num_rings
        self.decided = [0] * num_rings
        self.closed = [0] * num_rings
        self.min_updates = 0
        self.window = window
        self.maxima: list[float] = []  # of every call that set a priority, since the start
        self.inserted = self.ignored = self.discarded = self.retired = 0
        self.priority: dict[tuple[int, int, int], float] = {}  # (ring, position, env), above zero only

    def ingest(self) -> int:
        inserted = 0
        for ring, rows in enumerate(self.rows):
            for row in rows[self.seen[ring] :]:
                inserted += self._steps(row)
            self.seen[ring] = len(rows)
        self._close_stale()
        for ring, rows in enumerate(self.rows):
            for i in range(self.decided[ring], len(rows) - self.sequence_rows + 1):
                self.decided[ring] = i + 1
                if i < self.closed[ring] or i % self.period != 0:
                    continue
                for env in range(0, self.num_envs, self.streams_of_item):
                    streams = range(env, env + self.streams_of_item)
                    if any(slow_trained(rows, row, s) for row in self.trained_rows(i) for s in streams):
                        self.priority[ring, i, env] = self.largest()
        self.inserted += inserted
        return inserted

    def _steps(self, row: SlowRow) -> int:
        """Environments of which an agent acted in a row."""
        n = self.num_agents
        return sum(
            any(flag & RESET == 0 for flag in row.flags[e : e + n]) for e in range(0, self.num_envs, n)
        )

    @property
    def sequence_rows(self) -> int:
        return self.burn_in + self.length + self.n_step

    def trained_rows(self, i: int) -> range:
        """Rows that are trained on in the sequence that begins at row `i`, if the sequence is used."""
        return range(i + self.burn_in, i + self.burn_in + self.length)

    def _close(self, ring: int, position: int) -> int:
        gone = [key for key in self.priority if key[0] == ring and key[1] < position]
        for key in gone:
            del self.priority[key]
        self.closed[ring] = max(self.closed[ring], position)
        return len(gone)

    def _close_stale(self) -> int:
        discarded = 0
        for ring, rows in enumerate(self.rows):
            stop = self.closed[ring]
            while stop < self.seen[ring] and rows[stop].policy_updates < self.min_updates:
                discarded += self._steps(rows[stop])
                stop += 1
            self._close(ring, stop)
        self.discarded += discarded
        return discarded

    def retire_older_than(self, min_updates: int) -> int:
        self.min_updates = max(self.min_updates, min_updates)
        return self._close_stale()

    def grant(self, ring: int, position: int) -> None:
        if position > self.num_slots:
            self.retired += self._close(ring, position - self.num_slots + self.frame_stack - 1)

    def update_priorities(self, keys: list[tuple[int, int, int]], td_abs: NDArray[np.float32]) -> int:
        ignored, values = 0, []
        for key, error in zip(keys, td_abs, strict=True):
            if key in self.priority:
                value = float(np.float32(np.float32(error) + np.float32(self.eps)) ** np.float32(self.alpha))
                self.priority[key] = value
                values.append(value)
            else:
                ignored += 1
        if values:
            self.maxima.append(max(values))
        self.ignored += ignored
        return ignored

    def largest(self) -> float:
        """Largest priority in the window of the last call that set one and in the window before it; 1 before any."""
        if not self.maxima:
            return 1.0
        present = (len(self.maxima) - 1) // self.window
        return max(self.maxima[max(0, present - 1) * self.window :])

    def sample(self, uniforms: NDArray[np.float64]) -> list[tuple[int, int, int]]:
        """Stratified, over rings, then slots, then environments."""
        keys = sorted(self.priority, key=lambda k: (k[0], k[1] % self.num_slots, k[2]))
        tree = SlowSumTree(len(keys))
        tree.leaves = [self.priority[key] for key in keys]
        return [keys[leaf] for leaf in tree.sample(uniforms)]

    def weights(self, keys: list[tuple[int, int, int]], beta: float) -> NDArray[np.float64]:
        """Importance weights divided by the largest of these keys."""
        total = sum(self.priority.values())
        probabilities = np.array([self.priority[key] / total for key in keys])
        weights = (len(self.priority) * probabilities) ** -beta
        return weights / weights.max()

    def transition(self, key: tuple[int, int, int]) -> SlowTransition:
        ring, position, env = key
        rows = self.rows[ring]
        reward, discount, bootstrap = slow_n_step(rows, position, env, self.n_step, self.gamma)
        obs, next_obs = (slow_stack(rows, i, env, self.frame_stack) for i in (position, bootstrap))
        if self.frame_stack == 1:
            obs, next_obs = obs[0], next_obs[0]
        row = rows[position]
        extras = {name: values[env] for name, values in row.extras.items()}
        return SlowTransition(
            obs, row.action[env], reward, discount, next_obs, row.version, row.policy_updates, extras
        )


def slow_leaves(twin: SlowReplay, key: tuple[int, int, int], env: int) -> bool:
    """Whether an agent of a team, that of stream `env`, is truncated while another one goes on.

    `key` is that of the first agent's row.
    """
    ring, position, first = key
    rows = twin.rows[ring]
    after = slow_n_step(rows, position, env, twin.n_step, twin.gamma)[2]
    others = range(first, first + twin.num_agents)
    truncated = rows[after - 1].flags[env] & (TERMINATED | TRUNCATED) == TRUNCATED
    return twin.of_team and bool(truncated and any(not rows[after].flags[n] & RESET for n in others))


def slow_joint(twin: SlowReplay, key: tuple[int, int, int]) -> dict[str, Any]:
    """Fields that a `JointBatch` must have for the joint row whose first agent's row is at `key`."""
    ring, position, first = key
    rows, agents = twin.rows[ring], []
    for env in range(first, first + twin.num_agents):
        own = twin.transition((ring, position, env))
        acts = slow_trained(rows, position, env)
        agents.append(
            {
                "obs": own.obs,
                "action": own.action,
                "reward": np.float32(own.reward) if acts else 0.0,
                "discount": np.float32(own.discount) if acts and not slow_leaves(twin, key, env) else 0.0,
                "next_obs": own.next_obs if acts else own.obs,
                "trained": acts,
                **own.extras,
            }
        )
    wanted = {name: np.stack([agent[name] for agent in agents]) for name in agents[0]}
    if rows[position].state is not None:
        acting = [env for env in range(first, first + twin.num_agents) if slow_trained(rows, position, env)]
        ends = [slow_n_step(rows, position, env, twin.n_step, twin.gamma)[2] for env in acting]
        for name, at in (("state", position), ("next_state", max(ends))):
            wanted[name] = rows[at].state[first // twin.num_agents]
    return {**wanted, "version": own.version, "policy_updates": own.policy_updates}


def slow_sequence(twin: SlowReplay, key: tuple[int, int, int]) -> dict[str, Any]:
    """Fields that a `SequenceBatch` must have for the sequence that begins at `key`."""
    ring, position, env = key
    rows, first, trained = twin.rows[ring], twin.rows[ring][position], twin.trained_rows(position)
    seen = range(position, position + twin.sequence_rows)
    obs = [slow_stack(rows, i, env, twin.frame_stack) for i in seen]
    wanted: dict[str, Any] = {
        "obs": np.stack([stack if twin.frame_stack > 1 else stack[0] for stack in obs]),
        "begins": [i > position and slow_begins(rows, i, env) for i in seen],
        "action": np.stack([rows[i].action[env] for i in trained]),
        "trained": [slow_trained(rows, i, env) for i in trained],
        "version": first.version,
        "policy_updates": first.policy_updates,
        **{name: values[env] for name, values in first.extras.items()},
    }
    cuts = [
        slow_n_step(rows, i, env, twin.n_step, twin.gamma) if slow_trained(rows, i, env) else (0.0, 0.0, i)
        for i in trained
    ]
    wanted["reward"], wanted["discount"] = ([np.float32(c[k]) for c in cuts] for k in (0, 1))
    wanted["bootstrap"] = [c[2] - position for c in cuts]
    return wanted


def slow_joint_sequence(twin: SlowReplay, key: tuple[int, int, int]) -> dict[str, Any]:
    """Fields that a `JointSequenceBatch` must have for the joint sequence whose first agent's begins at `key`."""
    ring, position, first = key
    agents = [slow_sequence(twin, (ring, position, env)) for env in range(first, first + twin.num_agents)]
    shared = ("version", "policy_updates")
    wanted = {name: np.stack([agent[name] for agent in agents]) for name in agents[0] if name not in shared}
    for env, agent in enumerate(agents, first):
        for t, row in enumerate(twin.trained_rows(position)):
            if agent["trained"][t] and slow_leaves(twin, (ring, row, first), env):
                wanted["discount"][env - first, t] = 0.0
    seen = twin.rows[ring][position : position + twin.sequence_rows]
    if seen[0].state is not None:
        wanted["state"] = np.stack(
            [row.state[first // twin.num_agents] for row in seen if row.state is not None]
        )
    return wanted | {name: agents[0][name] for name in shared}


def layers_of(sizes: tuple[int, ...], flat: NDArray[np.float32]) -> list[tuple[NDArray[Any], NDArray[Any]]]:
    """Weights `[inputs, outputs]` and biases `[outputs]` of a flat perceptron, float64; its head comes transposed."""
    layers, start = [], 0
    for layer, (inputs, outputs) in enumerate(itertools.pairwise(sizes)):
        weights, bias = np.split(
            flat[start : start + (inputs + 1) * outputs].astype(np.float64), [inputs * outputs]
        )
        head = layer == len(sizes) - 2
        layers.append(
            (weights.reshape(outputs, inputs).T if head else weights.reshape(inputs, outputs), bias)
        )
        start += (inputs + 1) * outputs
    assert start == len(flat)
    return layers


def slow_perceptron(
    sizes: tuple[int, ...], flat: NDArray[np.float32], x: NDArray[Any], function: Callable[[float], float]
) -> NDArray[np.float64]:
    """Outputs for one row, one value at a time, float64."""
    *hidden, (head, head_bias) = layers_of(sizes, flat)
    x = x.astype(np.float64)
    for w, b in hidden:
        x = np.array([function(sum(x * w[:, j]) + b[j]) for j in range(w.shape[1])])
    return np.array([sum(x * head[:, j]) + head_bias[j] for j in range(head.shape[1])])
