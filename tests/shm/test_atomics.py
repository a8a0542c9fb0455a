"""Atomic words: contention of two processes, and refused arrays that could not be atomic."""

from __future__ import annotations

import numpy as np
import pytest
from shm_processes import WORDS

from asyncrl.shm.atomics import copy_words, load_acquire
from asyncrl.shm.kernel import kernel
from asyncrl.shm.segment import Segment

SECONDS = 0.2
MESSAGES = 10_000


def test_two_processes_lose_no_increment(nursery):
    with Segment.create("words", WORDS) as segment:
        children = [nursery.fork("contend", SECONDS, fds=(segment.fd,)) for _ in range(2)]
        counts = np.sum([nursery.join(child) for child in children], axis=0)
        words = segment["words"]
        assert words[16] == counts[0] > 0, "compare_exchange"
        assert words[48] == counts[1] > 0, "a plain counter behind acquire and release"


def test_what_was_written_before_a_release_is_seen_after_the_acquire(nursery):
    with Segment.create("words", WORDS) as segment:
        children = [nursery.fork(side, MESSAGES, fds=(segment.fd,)) for side in ("echo", "ask")]
        for child in children:
            nursery.join(child)
        assert segment["words"][112] == MESSAGES
        assert segment["words"][128] == 0, "messages whose payload was old"


@pytest.mark.parametrize("signature", ["int64(int32[::1])", "int64(float64[::1])", "int64(int64[:])"])
def test_a_word_that_is_not_a_contiguous_int64_is_refused(signature):
    with pytest.raises(TypeError, match="atomic words live in contiguous int64 arrays, got"):
        kernel(signature)(lambda words: load_acquire(words, 0)).ready()


def test_copy_words_refuses_another_dtype():
    with pytest.raises(TypeError, match="copy_words needs two contiguous arrays of one dtype"):
        kernel("void(float32[::1], float64[::1])")(lambda target, source: copy_words(target, source)).ready()
