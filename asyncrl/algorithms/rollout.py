"""The steps of one on-policy iteration in flat arrays: what `begin` copies out of the segments.

S = K E streams (K segments of E environments) of T rows each lie stream-major, N = S T rows in all. After them stand
the S observations that the segments' ends are bootstrapped of; the first of those places, row N, serves as padding
too: its numbers are zero.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from asyncrl.acting.stochastic import OBSERVATION_CLIP
from asyncrl.algorithms.actor_critic import ActorCritic
from asyncrl.interfaces import RESET, Segment
from asyncrl.networks.distributions import Distribution

NUMBERS = ("log_prob", "advantage", "target", "value", "policy_weight", "value_weight", "entropy_weight")
"""Rows of `Rollout.numbers`: the log-probability that the ratio is taken of, ..., weights of the terms of the loss."""

_ROWS = ("reward", "flags", "behaviour", "weight")
_CHUNK = 2048


class Rollout:
    """Buffers for segments of one shape; filled once per iteration.

    Args:
        nets: networks whose inputs these become.
        streams: S.
        length: T.

    Attributes:
        x: `[N + S, inputs + 1]` on the device, normalised observations and a column of ones.
        action: `[N + S, ...]` on the device, what the distribution evaluates: int64 choices, float32 actions, or the
            latents of squashed ones. Zeros behind row N.
        numbers: `[7, N + 1]` float32 on the device, see `NUMBERS`; zeros at N.
        reward, flags: `[S, T]`.
        behaviour: `[S, T]` float32, log-probability of the action when it was drawn.
        weight: `[S, T]` float32, staleness correction; 0 in RESET rows.
        valid: indices int64 of the rows that are trained on.
    """

    def __init__(self, nets: ActorCritic, streams: int, length: int) -> None:
        self.shape = streams, length
        self._nets, layout = nets, nets.layout
        count, pinned = streams * length, nets.device.type == "cuda"
        rows = count + streams
        self._latent = "latent" if layout.squashed else None
        kind = torch.float32 if layout.gaussian else torch.int64
        shape = (rows, layout.outputs) if layout.gaussian else (rows, *layout.action.shape)
        self._x = torch.ones(rows, layout.inputs + 1, pin_memory=pinned)
        self._action = torch.zeros(shape, dtype=kind)
        self._numbers = torch.zeros(len(NUMBERS), count + 1, pin_memory=pinned)
        self.x, self.action, self.numbers = (
            t.to(nets.device) for t in (self._x, self._action, self._numbers)
        )
        self.reward = np.zeros(self.shape, np.float32)
        self.flags = np.zeros(self.shape, np.uint8)
        self.behaviour = np.zeros(self.shape, np.float32)
        self.weight = np.zeros(self.shape, np.float32)
        self.valid = np.zeros(0, np.int64)
        self._statistics = nets.statistics
        self._value = np.zeros(rows, np.float32)
        self._log_prob = np.zeros(rows, np.float32)
        self._pass = nets.passes(min(rows, _CHUNK), gradient=False)

    def stage(self, segments: Sequence[Segment]) -> None:
        """Copy the segments in; nothing of them is kept. Fills all but `numbers`, uploads `x` and `action`."""
        streams, length = self.shape
        count, envs = streams * length, segments[0].num_envs
        x, action = self._x.numpy()[:, :-1], self._action.numpy()
        drawn = action[:count].reshape(*self.shape, *action.shape[1:])
        for i, segment in enumerate(segments):
            own = slice(i * envs, (i + 1) * envs)
            self._nets.normalized(segment.obs, x[own.start * length : own.stop * length])
            self._nets.normalized(segment.last_obs, x[count + own.start : count + own.stop])
            taken = segment.extras[self._latent] if self._latent else segment.action
            drawn[own] = taken.reshape(drawn[own].shape)
            self.behaviour[own] = segment.extras["log_prob"]
            self.reward[own], self.flags[own], self.weight[own] = (
                segment.reward,
                segment.flags,
                segment.weight,
            )
        self._statistics = self._nets.statistics
        counts = (self.flags & RESET) == 0
        self.weight *= counts
        self.valid = np.flatnonzero(counts)
        if self.x is not self._x:
            self.x.copy_(self._x, non_blocking=True)
            self.action.copy_(self._action)

    def renormalize(self) -> None:
        """Normalise `x` by the statistics as they stand now; what was cut to the clip before stays at its edge."""
        if not self._nets.layout.normalized:
            return
        now = self._nets.statistics
        before_mean, before_scale, mean, scale = (
            torch.from_numpy(a).to(self.x.device) for a in (*self._statistics, *now)
        )
        x = self.x[:, :-1]
        x.copy_(
            (x / before_scale + (before_mean - mean)).mul_(scale).clamp_(-OBSERVATION_CLIP, OBSERVATION_CLIP)
        )
        self._statistics = now

    def look(
        self, distribution: Distribution | None
    ) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]:
        """What the networks say now: values `[S, T]` and `[S]` of the ends, log-probabilities `[S, T]`.

        The same buffers at every call. The log-probabilities are not filled where `distribution` is None. Waits for
        the device.
        """
        work, rows = self._pass, self.x.shape[0]
        value, log_prob = torch.from_numpy(self._value), torch.from_numpy(self._log_prob)
        for start in range(0, rows, work.x.shape[0]):
            own = slice(start, min(start + work.x.shape[0], rows))
            size = own.stop - start
            work.x[:size].copy_(self.x[own])
            if distribution is None:
                value[own].copy_(work.values()[:size])
                continue
            out, values = work.forward()
            value[own].copy_(values[:size])
            log_prob[own].copy_(distribution.evaluate(out[:size], self.action[own], self._nets.log_std)[0])
        count = rows - self.shape[0]
        return (
            self._value[:count].reshape(self.shape),
            self._value[count:],
            self._log_prob[:count].reshape(self.shape),
        )

    def fill(self, **numbers: NDArray[np.float32]) -> None:
        """Write rows of `numbers`, each given as `[S, T]`, and upload them."""
        host = self._numbers.numpy()
        for name, values in numbers.items():
            host[NUMBERS.index(name), :-1] = values.reshape(-1)
        if self.numbers is not self._numbers:
            self.numbers.copy_(self._numbers, non_blocking=True)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Copies on the host, to be looked at: rows `[N, ...]` in the order of the segments' streams."""
        count = self.shape[0] * self.shape[1]
        found: dict[str, NDArray[Any]] = {
            "obs": self.x[:count, :-1].cpu().numpy().copy(),
            "action": self.action[:count].cpu().numpy().copy(),
            "reward": self.reward.reshape(-1).copy(),
            "flags": self.flags.reshape(-1).copy(),
            "behaviour_log_prob": self.behaviour.reshape(-1).copy(),
        }
        numbers = self.numbers[:, :count].cpu().numpy().copy()
        return found | dict(zip(NUMBERS, numbers, strict=True))

    def state_dict(self) -> dict[str, Any]:
        """What steps still read, as copies on the host."""
        return {
            "streams": self.shape[0],
            "length": self.shape[1],
            "x": self.x.cpu().clone(),
            "action": self.action.cpu().clone(),
            "numbers": self.numbers.cpu().clone(),
            "valid": self.valid.copy(),
            **{name: getattr(self, name).copy() for name in _ROWS},
            "mean": self._statistics[0].copy(),
            "scale": self._statistics[1].copy(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over (copy) what `state_dict` of a rollout of the same shape returned."""
        for name in ("x", "action", "numbers"):
            getattr(self, name).copy_(state[name])
        for name in _ROWS:
            np.copyto(getattr(self, name), state[name])
        self.valid = np.array(state["valid"], np.int64)
        self._statistics = np.array(state["mean"], np.float32), np.array(state["scale"], np.float32)
