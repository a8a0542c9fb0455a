"""The main function of forked processes, one for each of six roles.

    actor       steps environments into a ring until QUIT
    probe       builds one environment, checks it, and sends its spec
    renewal     builds one environment and changes its keyword arguments as an actor would
    trial       checks it likewise, and steps it with random actions for a while
    evaluator   plays greedy episodes on request
    film        plays one greedy episode into a video file

Frames to the main process are {"kind": "ready"}, {"kind": "spec", ...}, {"kind": "renewed"}, {"kind": "trial", ...},
{"kind": "alive", ...}, {"kind": "returns", ...}, {"kind": "film", ...}, {"kind": "state", ...} and {"kind": "error",
...}. Commands to an actor are single bytes: SPACE (a grant or an answer is there), SAVE and QUIT. A process exits when
the main process closes its end of the socket. On SAVE an actor sends its state between two rows; the main process sends
SAVE once the actor has made all granted rows.
"""

from __future__ import annotations

import os
import pickle
import select
import socket
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from asyncrl.actors.actor import Actor, ActorIdentity, staggered_steps
from asyncrl.actors.actor_state import restore_actor, state_frame
from asyncrl.actors.episodes import EpisodePlayer
from asyncrl.actors.frames import receive_frame, send_frame
from asyncrl.actors.global_generators import seed_generators
from asyncrl.actors.plans import QUIT, SAVE, ActorPlan, EvaluatorPlan, FilmPlan
from asyncrl.actors.self_play import PolicyWithOpponents, SelfPlayActor
from asyncrl.actors.served_actor import ServedActor
from asyncrl.actors.streams import AgentStreams, make_streams
from asyncrl.envs.checks import success_rate
from asyncrl.envs.rendering import build_rendering
from asyncrl.envs.renewal import Renewal, try_renewal
from asyncrl.envs.source import EnvSource, describe
from asyncrl.envs.video import VideoWriter, frames_per_second
from asyncrl.errors import TRACEBACK_LIMIT, AsyncRLError, describe_error, printable, shown
from asyncrl.protocols import Policy
from asyncrl.shm.doorbell import DoorbellWriter
from asyncrl.shm.env_kwargs import EnvKwargsReader
from asyncrl.shm.past_weights import PastWeights
from asyncrl.shm.requests import ActorRequests
from asyncrl.shm.ring import RUNNING, STARTING, WAITING_FOR_GRANT, RingWriter
from asyncrl.shm.segment import Segment
from asyncrl.shm.weights import WeightMailbox

_LISTEN_NS = 5_000_000
"""Interval at which a busy actor reads commands, in nanoseconds."""
_SLEEP_SECONDS = 0.1
"""Longest sleep while waiting for a grant: a wake-up can be lost, and the heartbeat must continue."""
_FIRST_WEIGHTS_SECONDS = 0.001
_ALIVE_SECONDS = 1.0
"""Interval of an evaluator's "alive" frames."""
FILM_PIXELS, FILM_NICENESS = 320, 5
"""Longer side of a film, and the priority of its process, which is below that of training."""
_FAILED, _REPORTED = 70, 3


def run_role(role: str, packed: BinaryIO, fds: dict[str, int]) -> int:
    """Run `role` in this process and return its exit status; an exception becomes an error frame.

    Args:
        role: a key of `_ROLES`.
        packed: file whose next pickle is the role's plan; closed here.
        fds: descriptors passed to the process, by name.
    """
    channel = socket.socket(fileno=fds["channel"])
    try:
        with packed:
            plan = pickle.load(packed)
        _ROLES[role](plan, channel, fds)
    except ConnectionError:
        return 0  # the main process has ended
    except BaseException as error:
        return _report(channel, role, error)
    return 0


def _report(channel: socket.socket, role: str, error: BaseException) -> int:
    """Send an error frame; its facts become text, so it unpickles without the environment's modules."""
    if not isinstance(error, AsyncRLError):
        trace = "".join(traceback.format_exception(error))
        error = AsyncRLError(f"The {role} process failed: {describe_error(error)}", remote_traceback=trace)
    error.facts = {name: v if type(v) in (int, float) else shown(v) for name, v in error.facts.items()}
    if error.remote_traceback is None and error.__cause__ is not None:
        trace = "".join(traceback.format_exception(error.__cause__))
        error.remote_traceback = printable(trace, TRACEBACK_LIMIT)
    try:
        send_frame(channel, {"kind": "error", "error": error})
    except OSError:
        return _FAILED
    return _REPORTED


class _Commands:
    """Commands from the actor's end of its socket."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._poller = select.poll()
        self._poller.register(channel.fileno(), select.POLLIN)
        self.quit = False
        self._save = False

    def listen(self, timeout_seconds: float = 0.0) -> None:
        """Wait for commands up to the timeout; QUIT sets `quit`. Raises ConnectionError if the socket was closed."""
        if self._poller.poll(timeout_seconds * 1000):
            data = self._channel.recv(4096)
            if not data:
                raise ConnectionResetError("the main process is gone")
            self.quit = self.quit or QUIT in data
            self._save = self._save or SAVE in data

    def answer(self, actor: Actor) -> None:
        """Send the actor's state after SAVE, between two rows only."""
        if self._save and actor.between_rows:
            self._save = False
            send_frame(self._channel, state_frame(actor))


def _play_actor(plan: ActorPlan, channel: socket.socket, fds: dict[str, int]) -> None:
    seed, life = plan.pool.seed, (plan.index, plan.incarnation)
    seed_generators(seed, (*life, 3))
    layout = plan.pool.layout
    segment = Segment.attach(fds["ring"], layout.arrays())
    bell = DoorbellWriter.attach(fds["bell"], fds["bell_pipe"])
    writer = RingWriter(segment, layout, bell)
    writer.set_state(STARTING)
    writer.heartbeat()
    actor = _make_actor(plan, writer, fds)
    seed_generators(seed, (*life, 4))  # again, because the environments may have loaded torch
    if plan.state is None:
        actor.begin()
    else:
        restore_actor(actor, plan.state)
    send_frame(channel, {"kind": "ready"})
    _step_until_quit(actor, _Commands(channel))
    actor.close()


def _make_actor(plan: ActorPlan, writer: RingWriter, fds: dict[str, int]) -> Actor:
    pool, layout = plan.pool, plan.pool.layout
    policy: Policy = pickle.loads(pool.policy)
    streams = make_streams(pool.source, layout.spec, layout.num_envs)
    if pool.staggered:
        cuts = staggered_steps(pool.staggered, plan.index, pool.num_actors, layout.environments)
        streams.stagger(cuts)
    identity: ActorIdentity = {
        "env_kwargs": EnvKwargsReader(fds["env_kwargs"]),
        "index": plan.index,
        "num_actors": pool.num_actors,
        "seed": pool.seed,
        "incarnation": plan.incarnation,
    }
    actor: Actor
    if pool.self_play is not None:
        assert isinstance(streams, AgentStreams), "a run checks that there are several agents"
        opponents = [pickle.loads(pool.policy) for _ in range(pool.self_play.environments)]
        both = PolicyWithOpponents(policy, opponents, layout.spec.num_agents)
        past = PastWeights.attach_for(fds["weights"], policy.weight_count, pool.self_play)
        actor = SelfPlayActor(streams, both, writer, past, pool.self_play, **identity)
    elif pool.requests is None:
        actor = Actor(streams, policy, writer, _mailbox_of(policy, fds), **identity)
    else:
        policies = [pickle.loads(pool.policy) for _ in pool.requests.slices]
        bell = DoorbellWriter.attach(fds["server_bell"], fds["server_bell_pipe"])
        requests = ActorRequests(Segment.attach(fds["requests"], pool.requests.arrays()), pool.requests, bell)
        actor = ServedActor(streams, policies, writer, _mailbox_of(policy, fds), requests, **identity)
    if pool.among is not None:
        first_index, all_actors = pool.among
        actor.place_among(first_index, all_actors)
    return actor


def _mailbox_of(policy: Policy, fds: dict[str, int]) -> WeightMailbox:
    return WeightMailbox.attach(fds["weights"], policy.weight_count, writable=False)


def _step_until_quit(actor: Actor, commands: _Commands) -> None:
    writer, listen_at = actor.writer, 0
    writer.set_state(RUNNING)
    while not commands.quit:
        now = time.monotonic_ns()
        writer.heartbeat(now)
        commands.answer(actor)
        if not actor.step():
            _sleep(actor, commands)
        elif now >= listen_at:
            listen_at = now + _LISTEN_NS
            commands.listen()


def _sleep(actor: Actor, commands: _Commands) -> None:
    """Wait for a grant, an answer, the first weights or a command, for a limited time."""
    if isinstance(actor, ServedActor) and (part := actor.waits_for) is not None:
        _sleep_until_answered(actor.requests, part, commands)
        return
    writer = actor.writer
    if not writer.must_sleep(writer.published + 2):
        if actor.weights_version == 0:
            commands.listen(_FIRST_WEIGHTS_SECONDS)
        return
    writer.set_state(WAITING_FOR_GRANT)
    before = time.monotonic_ns()
    commands.listen(_SLEEP_SECONDS)
    writer.slept(time.monotonic_ns() - before)
    writer.set_state(RUNNING)


def _sleep_until_answered(requests: ActorRequests, part: int, commands: _Commands) -> None:
    if requests.must_sleep(part):
        before = time.monotonic_ns()
        commands.listen(_SLEEP_SECONDS)
        requests.slept(part, time.monotonic_ns() - before)


def _play_probe(source: EnvSource, channel: socket.socket, fds: dict[str, int]) -> None:
    describe(source, lambda spec: send_frame(channel, {"kind": "spec", "spec": spec}))


def _play_renewal(renewal: Renewal, channel: socket.socket, fds: dict[str, int]) -> None:
    try_renewal(renewal)
    send_frame(channel, {"kind": "renewed"})


def _play_trial(plan: tuple[EnvSource, float], channel: socket.socket, fds: dict[str, int]) -> None:
    from asyncrl.envs.trial import try_out

    source, seconds = plan
    try_out(source, seconds, lambda trial: send_frame(channel, {"kind": "trial", "trial": trial}))


def _play_evaluator(plan: EvaluatorPlan, channel: socket.socket, fds: dict[str, int]) -> None:
    seed_generators(0)
    policy: Policy = pickle.loads(plan.policy)
    policy.assign_streams(0, 1, 1)
    mailbox = _mailbox_of(policy, fds)
    due = time.monotonic() + _ALIVE_SECONDS

    def alive(finished_episodes: int) -> None:
        nonlocal due
        if (now := time.monotonic()) >= due:
            due = now + _ALIVE_SECONDS
            send_frame(channel, {"kind": "alive", "episodes": finished_episodes})

    def player_of(level: int) -> EpisodePlayer:
        source = plan.sources[level]
        return EpisodePlayer(source, policy, alive=alive, trained=plan.spec)

    players = {0: player_of(0)}
    weights, version = np.empty(policy.weight_count, np.float32), 0
    send_frame(channel, {"kind": "ready"})
    while (received := receive_frame(channel)) is not None:
        request, _ = received
        version = mailbox.refresh(weights, version)
        policy.load_weights(weights)
        level = request.pop("level")
        if level not in players:
            players[level] = player_of(level)
        player = players[level]
        limit = request["max_steps"] = request["max_steps"] or player.limit
        seed_generators(request["seed"])
        returns, lengths = player.play(**request)
        answer = {"returns": returns, "lengths": lengths, "cut": player.cut_episodes, "limit": limit}
        send_frame(channel, {"kind": "returns", **answer, "success_rate": success_rate(player.successes)})
    for player in players.values():
        player.close()


def _play_film(plan: FilmPlan, channel: socket.socket, fds: dict[str, int]) -> None:
    os.nice(FILM_NICENESS)
    policy: Policy = pickle.loads(plan.policy)
    policy.assign_streams(0, 1, 1)
    policy.load_weights(np.frombuffer(plan.weights, np.float32))
    env: Any = build_rendering(plan.source, "rgb_array")
    seed_generators(plan.seed)
    with VideoWriter(Path(plan.path), frames_per_second(env), FILM_PIXELS) as video:
        player = EpisodePlayer(plan.source, policy, 1, lambda _: video.write(env.render()), env)
        returns, lengths = player.play(1, plan.seed, plan.max_steps, deterministic=plan.deterministic)
    film = {"return_sum": float(returns.sum()), "length": int(lengths[0]), "cut": bool(player.cut_episodes)}
    send_frame(channel, {"kind": "film", **film})
    player.close()


_ROLES: dict[str, Callable[[Any, socket.socket, dict[str, int]], None]] = {
    "actor": _play_actor,
    "probe": _play_probe,
    "renewal": _play_renewal,
    "trial": _play_trial,
    "evaluator": _play_evaluator,
    "film": _play_film,
}
