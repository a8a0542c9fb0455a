"""Check of a ring's header, and recovery of a ring that was overwritten.

An environment with native code can write anywhere in its process, including the words that its actor shares with the
learner side. Then only this ring is quarantined:

    sound ── a word is invalid ──> fault ── its actor is ended ──> abandoned ── begun again ──> sound
               found by the actor,            by the supervisor,                  by the learner's thread, which
               supervisor or learner          event loop                          discarded all rows of the ring

The learner's thread neither reads nor grants a ring with a fault. It begins the ring again at the position up to which
it had taken rows, with every word set anew, as if the actor had been killed. Overwritten words are detected,
overwritten observations and rewards are not. Therefore all rows of the ring are discarded.
"""

from __future__ import annotations

import time

import numpy as np
from numpy.typing import NDArray

from asyncrl.errors import RingCorrupt
from asyncrl.shm.atomics import load_word_last, store_word
from asyncrl.shm.ring_layout import (
    CURRENT_ENV,
    ENV_NS,
    EPISODES,
    EXPLORATION,
    GRANTED,
    INCARNATION,
    INFERENCE_NS,
    LOGGING,
    PUBLISHED,
    STARTING,
    STATE,
    STATES,
    STEPS,
    TIMED_ROWS,
    WAIT_NS,
    WAITING,
    WRITE_NS,
)

_MOST = 1 << 60


def ring_corrupt(fault: str) -> RingCorrupt:
    """Error ASYNC023 for a ring with an invalid header."""
    return RingCorrupt(
        "An experience ring was overwritten from outside.",
        facts={"header": fault},
        fix="look for native code in the environment that writes outside of its own arrays",
    )


def fault_of(
    header: NDArray[np.int64], granted: int, between: tuple[int, int], num_envs: int, num_slots: int
) -> str:
    """Description of the first word that is out of range, or "".

    Args:
        header: the ring's words; their writers may continue meanwhile.
        granted: the word GRANTED, read after `between[0]` and before `between[1]`.
        between: positions that the learner side had granted before and after.
        num_envs: E of the ring.
        num_slots: S of the ring.
    """
    if not between[0] <= granted <= between[1]:
        return f"granted is {granted}, and {between[1]} rows were granted"
    # What the grant bounds is read before the grant: rows that are granted meanwhile may be written meanwhile.
    counts = (STEPS, EPISODES, LOGGING, PUBLISHED, TIMED_ROWS)
    steps, episodes, logging, published, timed = (int(header[word]) for word in counts)
    most = load_word_last(header, GRANTED)
    ranges = (
        ("published", published, max(0, granted - num_slots), most),
        ("steps", steps, 0, most * num_envs),
        ("episodes", episodes, 0, most * num_envs),
        ("episodes logged", logging, 0, most * num_envs),
        ("state", int(header[STATE]), 0, len(STATES) - 1),
        ("current environment", int(header[CURRENT_ENV]), -1, num_envs - 1),
        ("nanoseconds waited", int(header[WAIT_NS]), 0, time.monotonic_ns()),
        ("nanoseconds of inference", int(header[INFERENCE_NS]), 0, _MOST),
        ("nanoseconds of environments", int(header[ENV_NS]), 0, _MOST),
        ("nanoseconds of writing", int(header[WRITE_NS]), 0, _MOST),
        ("timed rows", timed, 0, most),
        ("life", int(header[INCARNATION]), 0, _MOST),
        ("exploration rate", int(header[EXPLORATION]), 0, _MOST),
        ("waiting", int(header[WAITING]), 0, 1),
    )
    for name, value, least, largest in ranges:
        if not least <= value <= largest:
            return f"{name} is {value}, and can only be from {least} to {largest}"
    return ""


def begin_again(
    header: NDArray[np.int64], published: int, granted: int, episodes: int, num_envs: int
) -> None:
    """Set every word as if the actor had been killed after `published` rows.

    No other code may use the ring. EPISODES is set to `episodes`. STEPS is kept if in range, else set to its maximum.
    WAIT_NS, INCARNATION and EXPLORATION are kept if in range, else set to 0; the times of rows begin at 0.
    """
    steps, waited, life, rate = (int(header[word]) for word in (STEPS, WAIT_NS, INCARNATION, EXPLORATION))
    most = published * num_envs
    header[:] = 0
    header[STEPS] = steps if 0 <= steps <= most else most
    header[EPISODES] = episodes
    header[WAIT_NS] = waited if 0 <= waited <= time.monotonic_ns() else 0
    header[INCARNATION] = life if 0 <= life <= _MOST else 0
    header[EXPLORATION] = rate if 0 <= rate <= _MOST else 0
    header[STATE] = STARTING
    header[CURRENT_ENV] = -1
    store_word(header, PUBLISHED, published)
    store_word(header, GRANTED, granted)
