"""Functions of the other processes of these tests; run as a script it is the process that forks them.

python shm_processes.py FD     requests (verb, arguments) and descriptors come over socket FD; EOF ends it
"""

from __future__ import annotations

import ctypes
import os
import pickle
import random
import signal
import socket
import struct
import sys
import time
import traceback
from typing import Any

import numpy as np

from asyncrl.interfaces import DiscreteAction, EnvSpec, FieldSpec
from asyncrl.shm import ArraySpec, DoorbellWriter, RingLayout, RingWriter, Segment, WeightMailbox
from asyncrl.shm.atomics import compare_exchange, fence, load_acquire, store_release
from asyncrl.shm.doorbell import set_armed
from asyncrl.shm.kernel import kernel
from asyncrl.shm.prepare import prepare_quietly
from asyncrl.shm.requests import ActorRequests, RequestLayout
from asyncrl.shm.ring_layout import GRANTED, PUBLISHED, WAITING
from asyncrl.shm.ring_protocol import must_sleep, publish_rows, take_waiting

WORDS = (ArraySpec("words", (256,), "int64", control=True),)
COUNTING = RingLayout(
    num_envs=2,
    num_slots=64,
    spec=EnvSpec("counting", (128,), "int64", DiscreteAction(2)),
    extra_fields=(FieldSpec("log_prob", (3,), "float32"),),
)
ASKING = RingLayout(num_envs=3, num_slots=8, spec=EnvSpec("asking", (2,), "float32", DiscreteAction(2)))
REQUESTS = RequestLayout(num_envs=3, outputs=4, parts=2, parameters=1)
WEIGHTS = 50_000
DIE_WITH_PARENT = 1


# ---- counting rows: every byte of row p of environment e can be recomputed from (p, e) -----------

_ROW = (
    "int64[::1], int64[:, :, ::1], int64[:, ::1], float32[:, ::1], uint8[:, ::1], float32[:, :, ::1], "
    "int64[::1], int64[::1], int32[::1]"
)


@kernel("void(int64[:, :, ::1], int64, int64, int64)")
def write_observation(obs, e, slot, row):
    for i in range(obs.shape[2]):
        obs[e, slot, i] = row * 1000 + e * 500 + i


@kernel(f"void({_ROW}, int64, int64)")
def write_row(header, obs, action, reward, flags, extra, version, updates, incarnation, row, life):
    """Write all fields of row `row` except its observation, and the observation of row `row + 1`."""
    slot, following = row & (version.shape[0] - 1), (row + 1) & (version.shape[0] - 1)
    for e in range(obs.shape[0]):
        action[e, slot] = row * 4 + e
        reward[e, slot] = np.float32((row * 4 + e) & 0xFFFFF)
        flags[e, slot] = np.uint8((row + e) & 7)
        extra[e, slot, :] = np.float32((row * 2 + e) & 0xFFFFF)
        write_observation(obs, e, following, row + 1)
    version[slot] = row * 3
    updates[slot] = row * 5
    incarnation[slot] = life


@kernel(f"int64({_ROW}, int64, int64)")
def first_bad_row(header, obs, action, reward, flags, extra, version, updates, incarnation, start, stop):
    """First row of [start, stop) that differs from `write_row`'s, or -1."""
    for row in range(start, stop):
        slot = row & (version.shape[0] - 1)
        good = version[slot] == row * 3 and updates[slot] == row * 5
        for e in range(obs.shape[0]):
            good &= action[e, slot] == row * 4 + e
            good &= reward[e, slot] == np.float32((row * 4 + e) & 0xFFFFF)
            good &= flags[e, slot] == np.uint8((row + e) & 7)
            for i in range(extra.shape[2]):
                good &= extra[e, slot, i] == np.float32((row * 2 + e) & 0xFFFFF)
            for i in range(obs.shape[2]):
                good &= obs[e, slot, i] == row * 1000 + e * 500 + i
        if not good:
            return row
    return -1


@kernel(f"void({_ROW}, int64[::1], int64, int64, boolean)")
def write_rows(
    header, obs, action, reward, flags, extra, version, updates, incarnation, armed, life, until, wrongly
):
    """Write and publish rows up to `until` as grants allow; `wrongly`: publish the position before the data."""
    row = header[PUBLISHED]
    for e in range(obs.shape[0]):
        while load_acquire(header, GRANTED) <= row:
            pass
        write_observation(obs, e, row & (version.shape[0] - 1), row)
    while row < until:
        while load_acquire(header, GRANTED) <= row + 1:
            pass
        if wrongly:
            store_release(header, PUBLISHED, row + 1)
        write_row(header, obs, action, reward, flags, extra, version, updates, incarnation, row, life)
        if not wrongly:
            publish_rows(header, armed, 1, obs.shape[0])
        row += 1


def rows_of(end: Any) -> tuple[Any, ...]:
    """Arrays of a counting ring's end in the order of the kernels' parameters."""
    return (
        *(end.header, end.obs, end.action, end.reward, end.flags),
        *(end.extras["log_prob"], end.version, end.policy_updates, end.incarnation),
    )


def write_in_kernel(ring_fd: int, life: int, until: int, wrongly: bool) -> None:
    writer = RingWriter(Segment.attach(ring_fd, COUNTING.arrays()), COUNTING)
    write_rows(*rows_of(writer), np.zeros(16, np.int64), life, until, wrongly)


def write_in_python(ring_fd: int, bell_fd: int, pipe_fd: int, life: int, until: int) -> int:
    """The same through RingWriter's methods, like an actor; returns the number of rows published in this life."""
    bell = DoorbellWriter.attach(bell_fd, pipe_fd)
    writer = RingWriter(Segment.attach(ring_fd, COUNTING.arrays()), COUNTING, bell)
    first = writer.published
    _wait_for(lambda: writer.writable() >= 1)
    for e in range(COUNTING.num_envs):
        write_observation(writer.obs, e, first & (COUNTING.num_slots - 1), first)
    while writer.published < until:
        _wait_for(lambda: writer.writable() >= 2)
        write_row(*rows_of(writer), writer.published, life)
        writer.publish(1, steps=COUNTING.num_envs)
    return writer.published - first


def _wait_for(condition: Any) -> None:
    while not condition():
        os.sched_yield()


# ---- atomics -------------------------------------------------------------------------------------


@kernel("void(int64[::1], int64)")
def _add_by_exchange(words, count):
    for _ in range(count):
        while True:
            seen = load_acquire(words, 16)
            if compare_exchange(words, 16, seen, seen + 1):
                break


@kernel("void(int64[::1], int64)")
def _add_under_lock(words, count):
    """Increment a plain counter at 48 under a spin lock at 32: correct only if acquire and release order it."""
    for _ in range(count):
        while not compare_exchange(words, 32, 0, 1):
            pass
        words[48] += 1
        store_release(words, 32, 0)


@kernel("void(int64[::1], int64)")
def _ask(words, count):
    """Send 3 i as the payload of message i; count at 128 the answers with another payload."""
    for i in range(1, count + 1):
        words[80] = i * 3
        store_release(words, 64, i)
        while load_acquire(words, 112) < i:
            pass
        if words[96] != i * 3:
            words[128] += 1


@kernel("void(int64[::1], int64)")
def _echo(words, count):
    """Answer each number at 64 with the payload stored before it; a hoisted load would never end."""
    for i in range(1, count + 1):
        while load_acquire(words, 64) < i:
            pass
        words[96] = words[80]
        store_release(words, 112, i)


@kernel("void(int64[::1], int64)")
def _meet(words, arrivals):
    """Barrier: wait until both processes have arrived equally often."""
    while True:
        seen = load_acquire(words, 192)
        if compare_exchange(words, 192, seen, seen + 1):
            break
    while load_acquire(words, 192) < arrivals:
        pass


def contend(fd: int, seconds: float) -> list[int]:
    """Count together with the other process during a time, in two ways; returns the counts of each."""
    words, counts = Segment.attach(fd, WORDS)["words"], []
    for meeting, add in enumerate((_add_by_exchange, _add_under_lock), start=1):
        _meet(words, 2 * meeting)
        deadline, count = time.monotonic() + seconds, 0
        while time.monotonic() < deadline:
            add(words, 1000)
            count += 1000
        counts.append(count)
    return counts


def ask(fd: int, count: int) -> None:
    _ask(Segment.attach(fd, WORDS)["words"], count)


def echo(fd: int, count: int) -> None:
    _echo(Segment.attach(fd, WORDS)["words"], count)


# ---- doorbell ------------------------------------------------------------------------------------

ROUND, DONE, RANG, QUIT = 128, 144, 160, 176


@kernel("void(int64[::1], int64[::1], int64[::1], boolean)")
def publish_in_lockstep(header, armed, words, fenced):
    """Once per round: publish a row and record whether the bell had to be rung."""
    for i in range(1, 1 << 62):
        while load_acquire(words, ROUND) < i:
            load_acquire(armed, 0)
            if load_acquire(words, QUIT) != 0:
                return
        if fenced:
            rang = publish_rows(header, armed, 1, 0)
        else:
            store_release(header, PUBLISHED, header[PUBLISHED] + 1)
            rang = np.int64(1) if load_acquire(armed, 0) == 1 else np.int64(0)
        words[RANG] = rang
        store_release(words, DONE, i)


@kernel("int64(int64[::1], int64[::1], int64[::1], int64, int64, boolean)")
def arm_in_lockstep(header, armed, words, start, stop, fenced):
    """Once per round: arm, read the ring, and count the rounds in which neither side saw the other."""
    lost = 0
    for i in range(start + 1, stop + 1):
        store_release(armed, 0, 0)
        fence()
        store_release(words, ROUND, i)
        # The other side needs a while to see the round: vary who is first. Both keep the line they are going to
        # load in their caches, so that an unfenced load is done long before the store that precedes it.
        for _ in range((i * 7919) & 1023):
            if load_acquire(header, PUBLISHED) >= i:
                break
        if fenced:
            set_armed(armed, 1)
        else:
            store_release(armed, 0, 1)
        seen = load_acquire(header, PUBLISHED) >= i
        while load_acquire(words, DONE) < i:
            pass
        if not seen and words[RANG] == 0:
            lost += 1
    return lost


@kernel("void(int64[::1], int64[::1])")
def sleep_in_lockstep(header, words):
    """Once per round: sleep until one more row is granted, and record whether it had to sleep."""
    for i in range(1, 1 << 62):
        while load_acquire(words, ROUND) < i:
            load_acquire(header, GRANTED)
            if load_acquire(words, QUIT) != 0:
                return
        words[RANG] = np.int64(1) if must_sleep(header, i) else np.int64(0)
        store_release(words, DONE, i)


@kernel("int64(int64[::1], int64[::1], int64, int64)")
def grant_in_lockstep(header, words, start, stop):
    """Once per round: grant a row and look for a sleeper; count the rounds in which a sleeper is missed."""
    lost = 0
    for i in range(start + 1, stop + 1):
        store_release(header, WAITING, 0)
        fence()
        store_release(words, ROUND, i)
        for _ in range((i * 7919) & 1023):
            if load_acquire(header, WAITING) == 1:
                break
        store_release(header, GRANTED, i)
        woken = take_waiting(header)
        while load_acquire(words, DONE) < i:
            pass
        if words[RANG] == 1 and not woken:
            lost += 1
    return lost


def sleeping_side(ring_fd: int, words_fd: int) -> None:
    ring = Segment.attach(ring_fd, COUNTING.arrays())["header"]
    sleep_in_lockstep(ring, Segment.attach(words_fd, WORDS)["words"])


def granting_side(ring_fd: int, words_fd: int, rounds: int, seconds: float) -> tuple[int, int]:
    """Meet the sleeping side for a number of rounds or a time; returns (rounds, sleepers never woken)."""
    ring = Segment.attach(ring_fd, COUNTING.arrays())["header"]
    words = Segment.attach(words_fd, WORDS)["words"]
    deadline, done, lost = time.monotonic() + seconds, 0, 0
    while done < rounds and time.monotonic() < deadline:
        lost += grant_in_lockstep(ring, words, done, done + 100)
        done += 100
    words[QUIT] = 1
    return done, lost


def publishing_side(ring_fd: int, bell_fd: int, words_fd: int, fenced: bool) -> None:
    publish_in_lockstep(*_litmus_words(ring_fd, bell_fd, words_fd), fenced)


def arming_side(
    ring_fd: int, bell_fd: int, words_fd: int, rounds: int, seconds: float, fenced: bool
) -> tuple[int, int]:
    """Meet the other side for a number of rounds or a time; returns (rounds, lost wake-ups).

    Without the fences the first lost wake-up is enough.
    """
    header, armed, words = _litmus_words(ring_fd, bell_fd, words_fd)
    deadline, done, lost = time.monotonic() + seconds, 0, 0
    while done < rounds and time.monotonic() < deadline and (fenced or lost == 0):
        lost += arm_in_lockstep(header, armed, words, done, done + 100, fenced)
        done += 100
    words[QUIT] = 1
    return done, lost


def _litmus_words(ring_fd: int, bell_fd: int, words_fd: int) -> tuple[Any, Any, Any]:
    ring = Segment.attach(ring_fd, COUNTING.arrays())["header"]
    return ring, DoorbellWriter.attach(bell_fd, -1).armed, Segment.attach(words_fd, WORDS)["words"]


def die_before_ringing(ring_fd: int, bell_fd: int, pipe_fd: int) -> None:
    """Take the word like `publish`, and be killed before the byte is written."""
    bell = DoorbellWriter.attach(bell_fd, pipe_fd)
    writer = RingWriter(Segment.attach(ring_fd, COUNTING.arrays()), COUNTING, bell)
    bell.ring = lambda: os.kill(os.getpid(), signal.SIGKILL)
    writer.publish()


def publish_some(ring_fd: int, bell_fd: int, pipe_fd: int, rows: int) -> None:
    bell = DoorbellWriter.attach(bell_fd, pipe_fd)
    writer = RingWriter(Segment.attach(ring_fd, COUNTING.arrays()), COUNTING, bell)
    for _ in range(rows):
        writer.publish()


def sleep_for_grants(ring_fd: int, command_fd: int, until: int) -> int:
    """Actor that sleeps without a time-out whenever it is out of space; returns how often it slept."""
    writer = RingWriter(Segment.attach(ring_fd, COUNTING.arrays()), COUNTING)
    sleeps = 0
    while writer.published < until:
        if writer.writable() < 1 and writer.must_sleep(writer.published + 1):
            os.read(command_fd, 1)
            writer.slept(0)
            sleeps += 1
        elif writer.writable() >= 1:
            writer.publish()
    return sleeps


# ---- weights -------------------------------------------------------------------------------------


def publish_weights(fd: int, until: int) -> int:
    """Publish version v as v everywhere, made by 7 v updates, up to version `until`, with an update's time between."""
    mailbox = WeightMailbox.attach(fd, WEIGHTS)
    values, work = np.empty(WEIGHTS, np.float32), np.empty(WEIGHTS, np.float32)
    while (version := mailbox.version) < until:
        values.fill(version + 1)
        assert mailbox.publish(values, 7 * (version + 1)) == version + 1
        np.sqrt(values, out=work)
    return mailbox.version


def die_while_publishing(fd: int) -> None:
    def half(back: Any) -> None:
        back[: WEIGHTS // 2] = -1
        os.kill(os.getpid(), signal.SIGKILL)

    WeightMailbox.attach(fd, WEIGHTS).publish_with(half)


# ---- the process that forks ----------------------------------------------------------------------


# ---- questions and answers ---------------------------------------------------------------------


def answer_to(obs: Any) -> tuple[Any, Any, int]:
    """Outputs, parameters and version of the correct answer to observations `[rows, 2]`."""
    question = obs[:, :1] + 2 * obs[:, 1:]
    return np.repeat(question, 4, axis=1), np.array([question.sum()], np.float32), int(abs(obs[0, 0]))


def ask_in_turn(
    ring_fd: int, block_fd: int, bell_fd: int, pipe: int, channel: int, rounds: int, longest: float
) -> str:
    """Send requests for both parts in turn, like an actor; returns the first error, or that all were answered."""
    obs = Segment.attach(ring_fd, ASKING.arrays())["obs"]
    requests = ActorRequests(
        Segment.attach(block_fd, REQUESTS.arrays()), REQUESTS, DoorbellWriter.attach(bell_fd, pipe)
    )
    server = socket.socket(fileno=channel)
    server.settimeout(longest)
    parts, slot = REQUESTS.slices, 0
    rng = np.random.default_rng(random.getrandbits(32))

    def question(part: int) -> None:
        obs[parts[part], slot] = rng.integers(-1000, 1000, 2)
        requests.ask(part, slot)

    question(0)
    question(1)
    for count in range(rounds):
        for part in (0, 1):
            while not requests.answered(part):
                if requests.must_sleep(part):
                    before = time.monotonic_ns()
                    try:
                        server.recv(64)
                    except TimeoutError:
                        return f"round {count}: a wake-up was lost"
                    requests.slept(part, time.monotonic_ns() - before)
            outputs, parameters, version = answer_to(obs[parts[part], slot])
            if not ((requests.outputs(part) == outputs).all() and requests.parameters(part) == parameters):
                return f"round {count}: the answer of another question"
            if requests.version(part) != (version, 2 * version):
                return f"round {count}: the version of another answer"
            if count < rounds - 1:
                question(part)
    return "all answered"


def _child(function: str, args: tuple[Any, ...], fds: list[int], answer: int, parent: int) -> None:
    """Run one function and exit without clean-up of the parent's state."""
    try:
        ctypes.CDLL(None).prctl(DIE_WITH_PARENT, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
        random.seed(os.getpid() ^ time.monotonic_ns())
        result, status = globals()[function](*fds, *args), 0
    except BaseException:
        result, status = traceback.format_exc(), 1
    os.write(answer, pickle.dumps(result))
    os._exit(status)


def _serve(channel: socket.socket) -> None:
    answers: dict[int, int] = {}
    while True:
        head, fds, _, _ = socket.recv_fds(channel, 4, 8)
        if not head:
            break
        verb, args = pickle.loads(channel.recv(struct.unpack("<I", head)[0], socket.MSG_WAITALL))
        if verb == "fork":
            read_end, write_end = os.pipe()
            parent = os.getpid()
            reply: Any = os.fork()
            if reply == 0:
                channel.close()
                _child(args[0], args[1], fds, write_end, parent)
            os.close(write_end)
            answers[reply] = read_end
        elif verb in ("kill", "join"):
            if verb == "kill":
                os.kill(args[0], signal.SIGKILL)
            with open(answers.pop(args[0]), "rb") as pipe:
                data = pipe.read()
            status = os.waitpid(args[0], 0)[1]
            reply = status if verb == "kill" else (status, pickle.loads(data) if data else None)
        else:
            reply = "ready"
        for fd in fds:
            os.close(fd)
        data = pickle.dumps(reply)
        channel.sendall(struct.pack("<I", len(data)) + data)
    for pid in answers:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


if __name__ == "__main__":
    prepare_quietly()  # a child that compiled first would not be doing what it was forked for
    _serve(socket.socket(fileno=int(sys.argv[1])))
