"""Atomic operations on words in shared memory.

Three intrinsics on one-dimensional int64 arrays and a fence, lowered to LLVM's atomic instructions. So they are correct
on ARM (`ldar`, `stlr`) and on x86, where loads and stores are plain moves that the compiler may not hoist or reorder.
(Inline assembly aborts the process under llvmlite, and a plain load is hoisted out of a spinning loop.)

    load_acquire(a, i)                  later accesses see everything written before the store that is read
    store_release(a, i, v)              earlier accesses are visible to every load_acquire that reads v
    compare_exchange(a, i, old, new)    sequentially consistent; True if a[i] was old and is now new
    fence()                             sequentially consistent: no later load is reordered before an earlier store

They can be called in compiled kernels only; `load_word`, `load_word_last` and `store_word` are kernels for Python. The
index is not checked; callers validate it in Python.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic as _intrinsic
from numba.np import arrayobj
from numpy.typing import NDArray

from asyncrl.shm.kernel import kernel

_make_array: Any = arrayobj.make_array
_raw_memcpy: Any = cgutils.raw_memcpy


def intrinsic(function: Callable[..., Any]) -> Callable[..., Any]:
    """`numba.extending.intrinsic` with a type annotation, for strict type checks of the callers."""
    return cast("Callable[..., Any]", _intrinsic(function))


def _word(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    """Pointer to `a[i]` for the first two arguments of an intrinsic."""
    array = _make_array(signature.args[0])(context, builder, args[0])
    return builder.gep(array.data, [args[1]])


def _check(array: Any) -> None:
    if not (isinstance(array, types.Array) and array.dtype == types.int64 and array.layout == "C"):
        raise TypeError(f"atomic words live in contiguous int64 arrays, got {array}")


@intrinsic
def load_acquire(typing_context: Any, a: Any, i: Any) -> Any:
    """`a[i]`, ordered before every later access."""
    _check(a)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load_atomic(_word(context, builder, signature, args), "acquire", 8)

    return types.int64(a, types.intp), generate


@intrinsic
def store_release(typing_context: Any, a: Any, i: Any, value: Any) -> Any:
    """`a[i] = value`, ordered after every earlier access."""
    _check(a)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store_atomic(args[2], _word(context, builder, signature, args), "release", 8)
        return context.get_dummy_value()

    return types.void(a, types.intp, types.int64), generate


@intrinsic
def compare_exchange(typing_context: Any, a: Any, i: Any, expected: Any, new: Any) -> Any:
    """Atomically set `a[i] = new` if it is `expected`; returns whether it was."""
    _check(a)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        word = _word(context, builder, signature, args)
        return builder.extract_value(builder.cmpxchg(word, args[2], args[3], "seq_cst", "seq_cst"), 1)

    return types.boolean(a, types.intp, types.int64, types.int64), generate


@intrinsic
def fence(typing_context: Any) -> Any:
    """Sequentially consistent fence: a full barrier between earlier and later accesses."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def copy_words(typing_context: Any, target: Any, source: Any) -> Any:
    """Copy all of `source` to the start of `target` with the C library's memcpy; same dtype, no overlap."""
    if not (target.layout == "C" and source.layout == "C" and target.dtype == source.dtype):
        raise TypeError(f"copy_words needs two contiguous arrays of one dtype, got {target} and {source}")

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        to, of = (_make_array(t)(context, builder, a) for t, a in zip(signature.args, args, strict=True))
        _raw_memcpy(builder, to.data, of.data, of.nitems, of.itemsize)
        return context.get_dummy_value()

    return types.void(target, source), generate


@kernel("int64(int64[::1], int64)", nogil=False)
def load_word(words: NDArray[np.int64], i: int) -> int:
    """`load_acquire` for Python."""
    return load_acquire(words, i)  # type: ignore[no-any-return]


@kernel("int64(int64[::1], int64)", nogil=False)
def load_word_last(words: NDArray[np.int64], i: int) -> int:
    """`load_acquire` after all earlier reads of the caller (fence), for Python."""
    fence()
    return load_acquire(words, i)  # type: ignore[no-any-return]


@kernel("void(int64[::1], int64, int64)", nogil=False)
def store_word(words: NDArray[np.int64], i: int, value: int) -> None:
    """`store_release` for Python."""
    store_release(words, i, value)
