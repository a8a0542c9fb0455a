"""An actor that requests its network's outputs from an inference server, and steps one half while the other waits.

A row is a step of all E environments, and all E streams of a ring share one cursor. So a row is made in parts, one
after the other, and published after the last:

    part A   | step row t, ask for t + 1 |      (waits)              | step row t + 1, ask for t + 2 |
    part B   |        (waits)            | step row t, ask for t + 1 |           (waits)             |
    ring                                              row t published ^

A part sends its request as soon as its next observations are written, before the row is published: only the server
reads them. It sends requests for granted rows only, so in lockstep all rows of a quantum are acted with the weights
published before it. The parts take turns in a fixed order, independent of the order of the answers, so the generator is
used in the same order on every machine. Each part explores (epsilon, noise) for its own streams. With one part (a
single environment, or a vector environment, which steps all at once) the rows are exactly those of an `Actor`.

A row has one policy version, the oldest of its parts' answers.

Measured on two busy cores with the Nature CNN (benchmarks/systems/inference.py): one actor in halves made 1.12 (16
environments) and 1.33 times (64) the steps/s of one with a single request. With two actors, each works while the other
waits: halves then gain nothing, and for a small network cost 10 to 35 % more CPU, with twice as many passes. Which case
applies depends on the machine, but the results of training must not, so there are halves whenever possible.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter_ns
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray

from asyncrl.acting.network_policy import ServedPolicy, own_weights
from asyncrl.actors.actor import TIMED_MASK, Actor, ActorIdentity
from asyncrl.actors.streams import Events, Streams
from asyncrl.shm.requests import ActorRequests
from asyncrl.shm.ring import RingWriter
from asyncrl.shm.weights import WeightMailbox


class ServedActor(Actor):
    """Actor whose network outputs come from an inference server.

    Args:
        streams: see `Actor`.
        policies: one for each part of the requests, all equal; their networks are not run.
        writer, mailbox: see `Actor`; the mailbox is not read.
        requests: the actor's end of its request block.
        identity: see `ActorIdentity`.
    """

    def __init__(
        self,
        streams: Streams,
        policies: Sequence[ServedPolicy],
        writer: RingWriter,
        mailbox: WeightMailbox,
        requests: ActorRequests,
        **identity: Unpack[ActorIdentity],
    ) -> None:
        super().__init__(streams, policies[0], writer, mailbox, **identity)
        self.requests = requests
        self._parts = requests.layout.slices
        self._requested = [False] * len(self._parts)
        self._part = 0
        self._held_versions = [0] * len(self._parts)
        self._versions: list[tuple[int, int]] = []
        self._events: list[Events] = []
        if self._stacks is not None:
            self.take_stacks(self._stacks.array)
        self.take_policies(policies)
        self.place_among(0, identity["num_actors"])

    def place_among(self, first_index: int, all_actors: int) -> None:
        """See `Actor`."""
        num_envs = self.streams.num_envs
        first, total = (first_index + self.index) * num_envs, all_actors * num_envs
        for policy, part in zip(self.policies, self._parts, strict=True):
            policy.assign_streams(first + part.start, part.stop - part.start, total)

    def take_policies(self, policies: Sequence[ServedPolicy]) -> None:
        """Set the policies, one for each part, with their state."""
        self.policies = list(policies)
        for part, policy in enumerate(self.policies):
            policy.network.answer = lambda part=part: self.requests.outputs(part)

    def take_stacks(self, stacks: NDArray[Any]) -> None:
        """Copy the frame stacks `[E, k, *obs_shape]` to shared memory and use them there."""
        assert self._stacks is not None and self.requests.stacks is not None
        self.requests.stacks[...] = stacks
        self._stacks.array = self.requests.stacks

    @property
    def between_rows(self) -> bool:
        """Whether no part of the next row has been made."""
        return self._part == 0

    @property
    def waits_for(self) -> int | None:
        """Index of the next part to step, if its request was sent; None if a grant is missing."""
        return self._part if self._requested[self._part] else None

    def step(self) -> bool:
        """Make the answered parts of a row, and publish it after the last.

        Returns False if it must wait for a grant or an answer (`waits_for`). Raises as `Actor.step`.
        """
        writer, position = self.writer, self.writer.published
        if writer.granted < position + 2:
            return False
        slot, next_slot = position & self._mask, (position + 1) & self._mask
        if self._first_row and position == 0:
            self._write_first_obs(slot)
        resets = self._first_row and position > 0
        if self._part == 0 and not resets:
            self._renew_environments(position)
        for part in range(self._part, len(self._parts)):
            self._request(part, slot)
        while self._part < len(self._parts):
            part = self._part
            if not self.requests.answered(part):
                return False
            self._requested[part] = False
            self._take_version(part)
            if not resets:
                self._step_part(part, slot, next_slot)
                if writer.granted >= position + 3:
                    self._request(part, next_slot)
            self._part += 1
        self._finish_row(slot, next_slot, resets)
        return True

    def _request(self, part: int, slot: int) -> None:
        if not self._requested[part]:
            self._requested[part] = True
            self.requests.ask(part, slot)

    def _take_version(self, part: int) -> None:
        """Record the policy version of an answer; if it is new, copy the weights that the policy itself reads."""
        version, policy = self.requests.version(part), self.policies[part]
        self._versions.append(version)
        if version[0] != self._held_versions[part]:
            self._held_versions[part] = version[0]
            policy.weights[own_weights(policy)] = self.requests.parameters(part)
            policy.weights_changed()

    def _step_part(self, part: int, slot: int, next_slot: int) -> None:
        writer, rows, policy = self.writer, self._parts[part], self.policies[part]
        next_obs = writer.obs[:, next_slot]
        obs = writer.obs[rows, slot] if self._stacks is None else self._stacks.array[rows]
        timed = not writer.published & TIMED_MASK
        began = perf_counter_ns() if timed else 0
        actions, extras = policy.act(obs, self._rng, self._steps * self._num_actors)
        acted = perf_counter_ns() if timed else 0
        writer.action[rows, slot] = actions
        for name, values in extras.items():
            writer.extras[name][rows, slot] = values
        written = perf_counter_ns() if timed else 0
        try:
            events = self.streams.step(actions, next_obs, self._rewards, rows.start)
        except BaseException as error:
            raise self._explain(error, writer.action[:, slot]) from error
        if timed:
            writer.add_times(acted - began, perf_counter_ns() - written, written - acted, rows=0)
        self._events.append(events)
        if self._stacks is not None:
            self._begin_episodes(events, rows)

    def _finish_row(self, slot: int, next_slot: int, resets: bool) -> None:
        """Check, count and publish a row after its last part, or publish the RESET row of a later life."""
        writer = self.writer
        version = min(self._versions)
        if version[0] != self.weights_version:
            self.weights_version, self._weights_updates = version
            writer.set_exploration(self._exploration_rate())
        self._part, self._versions, self._first_row = 0, [], False
        if resets:
            self._write_reset_row(slot, next_slot)
            return
        self._refuse_non_finite(self.streams.newest, writer.action[:, slot])
        events: Events = self._events[0] if len(self._events) == 1 else np.concatenate(self._events)
        self._events = []
        if self._global_state is not None:
            self._write_states(next_slot, writer.action[:, slot])
        timed = not writer.published & TIMED_MASK
        began = perf_counter_ns() if timed else 0
        self._publish(slot, events)
        if timed:
            writer.add_times(0, 0, perf_counter_ns() - began)

    def _exploration_rate(self) -> float:
        counts = [part.stop - part.start for part in self._parts]
        rates: list[Any] = [policy.exploration_rate for policy in self.policies]
        return float(np.average(rates, weights=counts))
