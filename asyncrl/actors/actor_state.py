"""State of an actor between two rows: environments in mid-episode, generators, exploration and counters.

With it a later process continues with exactly the row that this one would have made next. The observation to act on is
in the ring and the weights are in the mailbox, so neither is part of the state.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from asyncrl.acting.network_policy import take_exploration
from asyncrl.actors.actor import Actor
from asyncrl.actors.global_generators import restore_generators, states_of_generators
from asyncrl.actors.served_actor import ServedActor
from asyncrl.actors.streams import AgentStreams, PlainStreams, Streams, VectorStreams
from asyncrl.envs.env_state import StateNotKept, pack_state, unpack_state
from asyncrl.errors import EnvironmentNotBuilt, error_text
from asyncrl.saved_state import attributes, set_attributes


def state_frame(actor: Actor) -> dict[str, Any]:
    """Return the actor's answer to SAVE: number of published rows, and its state as bytes, or None with the reason."""
    frame: dict[str, Any] = {"kind": "state", "published": actor.writer.published, "state": None, "why": ""}
    try:
        return {**frame, "state": _state(actor)}
    except StateNotKept as reason:
        return {**frame, "why": str(reason)}


def _state(actor: Actor) -> bytes:
    data = pack_state(
        {
            "actor": attributes(actor),
            "policy": actor.policies if isinstance(actor, ServedActor) else actor.policy,
            "streams": _streams_state(actor.streams),
            "global_generators": states_of_generators(),
        }
    )
    if not actor.state_was_read:  # once: a pickle of an environment may not load
        try:
            unpack_state(data)
        except Exception as error:
            raise StateNotKept(
                f"{type(error).__name__} when it was read again: {error_text(error)}"
            ) from error
        actor.state_was_read = True
    return data


def restore_actor(actor: Actor, data: bytes) -> None:
    """Restore the state of a `state_frame`, in place of `Actor.begin`.

    Raises:
        EnvironmentNotBuilt: it cannot be unpickled here (ASYNC004).
    """
    try:
        state = unpack_state(data)
    except Exception as error:
        raise EnvironmentNotBuilt(
            f"The environments that the checkpoint holds cannot be unpickled: {type(error).__name__}: "
            f"{error_text(error)}",
            facts={"actor": actor.index},
            fix="install the versions that meta.json names, or resume with restore_episodes=False",
        ) from error
    set_attributes(actor, state["actor"])
    _restore_policy(actor, state["policy"])
    slot = actor.writer.published & (actor.writer.num_slots - 1)
    newest = actor._first_obs if actor._first_row else actor.writer.obs[:, slot]
    _restore_streams(actor.streams, state["streams"], newest)
    if "global_generators" in state:  # not in the first checkpoints of version 0.1
        restore_generators(state["global_generators"])


def _restore_policy(actor: Actor, policy: Any) -> None:
    """Restore the policy, or one for each part of a served actor, unless the state is of the other kind of `inference`.

    In that case noise processes and repeated random actions begin anew. The options of exploration are those that the
    run has now, which may be others than in the state.
    """
    served = isinstance(policy, list)
    if isinstance(actor, ServedActor):
        if served:
            for own, now in zip(policy, actor.policies, strict=True):
                take_exploration(own, now)
            actor.take_policies(policy)
        if actor._stacks is not None:
            actor.take_stacks(actor._stacks.array)
    elif not served:
        take_exploration(policy, actor.policy)
        actor.policy = policy
        actor.take_memory()


def _streams_state(streams: Streams) -> dict[str, Any]:
    if not streams.STATE:
        raise StateNotKept(f"{type(streams).__name__} are streams of another kind")
    return attributes(streams)


def _restore_streams(streams: Streams, state: dict[str, Any], newest: Any) -> None:
    """Restore the environments; `newest` are their last observations."""
    streams.close()
    set_attributes(streams, {"steps_to_cut": {}, **state})  # not in the first checkpoints of version 0.1
    if isinstance(streams, PlainStreams):
        streams.find_steps()
        streams.newest = newest
    elif isinstance(streams, AgentStreams):
        streams.live[:] = [env.live for env in streams.envs]
        streams.newest = newest
    elif isinstance(streams, VectorStreams):
        dense = np.dtype(streams._dtype) == newest.dtype
        streams.newest = np.ascontiguousarray(newest) if dense else newest
