"""Atomic words for two processes, and the door through which numba enters `shm`.

Five intrinsics on one-dimensional int64 arrays, lowered to LLVM's own atomic instructions, so that they are
right on ARM (`ldar`, `stlr`) as well as on x86, where they are plain moves that the compiler may no longer
hoist or reorder. (Inline assembly aborts the process under llvmlite, and a plain load in a spinning loop is
hoisted out of it.)

    load_acquire(a, i)                  what follows sees at least what its writer wrote before
    store_release(a, i, v)              what preceded is seen by whoever sees v
    fetch_add(a, i, v)                  sequentially consistent; returns the value before
    compare_exchange(a, i, old, new)    sequentially consistent; True where a[i] was old and now is new
    fence()                             sequentially consistent: no later load passes an earlier store

They exist only inside compiled kernels. The index is not checked: the class validates, the kernel computes.

`kernel` compiles with an explicit signature, so a module's kernels are loaded from numba's disk cache when it
is imported and an argument of another dtype or layout is a TypeError instead of a silent second compilation.
numba's cache watches the file of the kernel alone, while a kernel has the functions and constants of other files
compiled into it: after an update of one of two files the old machine code ran on the new layout and died of it.
`kernel` therefore stamps its cache with all files that kernels are made of, and a kernel of a test or a
benchmark with its own file as well.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic as _intrinsic
from numba.np import arrayobj

Function = TypeVar("Function", bound=Callable[..., Any])
_make_array: Any = arrayobj.make_array
_raw_memcpy: Any = cgutils.raw_memcpy
_PACKAGE = Path(__file__).resolve().parents[1]


def intrinsic(function: Callable[..., Any]) -> Callable[..., Any]:
    """`numba.extending.intrinsic` with a type, so that strict checking holds for the callers."""
    return cast("Callable[..., Any]", _intrinsic(function))


def kernel(
    signature: str, *, nogil: bool = True, fastmath: frozenset[str] | set[str] = frozenset()
) -> Callable[[Function], Function]:
    """Compile a function for `signature`, cached on disk, without the GIL, with NumPy's rules for division.

    Args:
        signature: numba signature, e.g. `"int64(int64[::1], int64)"`.
        nogil: False only for kernels of a few nanoseconds, where giving the GIL away and taking it back would
            cost more than the kernel (37 ns of about 230) and invite another thread in between.
        fastmath: LLVM's flags for floating point; `{"reassoc"}` lets a sum become vector instructions.
    """

    def compiled(function: Function) -> Function:
        dispatcher: Any = njit(nogil=nogil, error_model="numpy", fastmath=set(fastmath))(function)
        dispatcher.enable_caching()
        own = Path(function.__code__.co_filename)
        stamp = source_stamp() if own.is_relative_to(_PACKAGE) else (*source_stamp(), *_stamps([own]))
        dispatcher._cache._cache_file._source_stamp = stamp
        dispatcher.compile(signature)
        dispatcher.disable_compile()
        return cast("Function", dispatcher)

    return compiled


@functools.cache
def source_stamp(package: Path = _PACKAGE) -> tuple[tuple[str, int, int], ...]:
    """Name, time of change and size of every file that kernels are made of: `core`, `shm` and `replay`."""
    return _stamps(
        sorted([package / "interfaces.py", *package.glob("shm/*.py"), *package.glob("replay/*.py")])
    )


def _stamps(files: Sequence[Path]) -> tuple[tuple[str, int, int], ...]:
    return tuple((file.name, file.stat().st_mtime_ns, file.stat().st_size) for file in files)


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
def fetch_add(typing_context: Any, a: Any, i: Any, value: Any) -> Any:
    """`a[i] += value` in one step; returns what `a[i]` was."""
    _check(a)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.atomic_rmw("add", _word(context, builder, signature, args), args[2], "seq_cst")

    return types.int64(a, types.intp, types.int64), generate


@intrinsic
def compare_exchange(typing_context: Any, a: Any, i: Any, expected: Any, new: Any) -> Any:
    """`a[i] = new` if it was `expected`, in one step; returns whether it was."""
    _check(a)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        word = _word(context, builder, signature, args)
        return builder.extract_value(builder.cmpxchg(word, args[2], args[3], "seq_cst", "seq_cst"), 1)

    return types.boolean(a, types.intp, types.int64, types.int64), generate


@intrinsic
def fence(typing_context: Any) -> Any:
    """Sequentially consistent fence: a full barrier between what stands before it and what stands after."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def copy_words(typing_context: Any, target: Any, source: Any) -> Any:
    """Copy all of `source` to the start of `target` with the C library's memcpy; one dtype, no overlap."""
    if not (target.layout == "C" and source.layout == "C" and target.dtype == source.dtype):
        raise TypeError(f"copy_words needs two contiguous arrays of one dtype, got {target} and {source}")

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        to, of = (_make_array(t)(context, builder, a) for t, a in zip(signature.args, args, strict=True))
        _raw_memcpy(builder, to.data, of.data, of.nitems, of.itemsize)
        return context.get_dummy_value()

    return types.void(target, source), generate
