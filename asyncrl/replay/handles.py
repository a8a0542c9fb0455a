"""Access to arrays by address, so that one kernel call serves any number of rings of any shape and dtype.

A kernel with array arguments is compiled for each dtype and number of axes, and unpacking takes about 0.1 microseconds
per argument. With a tuple of arrays per ring it would be compiled for each number of actors. So the replay passes its
kernels one int64 table of *addresses*: a row per ring, a column per array. The kernels are compiled once for all
environments, their disk cache always hits, and observations are copied as bytes.

Nothing here checks bounds. Code that stores an address must also store a reference to its array (`address_of` rejects
arrays that are not contiguous), and compute indices from checked shapes.

The functions also run in Python (slowly, through ctypes), so that kernels that use them can be tested as `.py_func`.

    float32s(address, count)     view of `count` float32 at `address`; likewise int64s, int32s, uint8s
    copy_bytes(to, of, count)    memcpy
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.typing import signature
from numba.np.numpy_support import from_dtype
from numpy.typing import NDArray

from asyncrl.shm.views import lowered, view_at

_raw_memcpy: Any = cgutils.raw_memcpy


def address_of(array: NDArray[Any]) -> int:
    """Address of the first byte of `array`. Raises ValueError if it is not C-contiguous."""
    if not array.flags.c_contiguous:
        raise ValueError(f"array must be C-contiguous, got strides {array.strides} for shape {array.shape}")
    return int(array.ctypes.data)


def _same_bits(function: Callable[..., Any], given: Any, returned: Any) -> None:
    """Let kernels call `function`, which reinterprets the bits of a value as another type."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.bitcast(args[0], context.get_value_type(returned))

    lowered(function, lambda value: signature(returned, given), generate)


def bits_of(value):  # type: ignore[no-untyped-def]
    """Bits of a float32 as int32."""
    return np.float32(value).view(np.int32)


def float_of(value):  # type: ignore[no-untyped-def]
    """Float32 with these bits."""
    return np.int32(value).view(np.float32)


_same_bits(bits_of, types.float32, types.int32)
_same_bits(float_of, types.int32, types.float32)


def _typed(dtype: Any) -> Callable[[int, int], NDArray[Any]]:
    """Make a function that views memory as a one-dimensional array of `dtype`, for Python and for kernels."""
    result = types.Array(from_dtype(np.dtype(dtype)), 1, "C")

    def view(address, count):  # type: ignore[no-untyped-def]
        size = int(count) * np.dtype(dtype).itemsize
        return np.frombuffer((ctypes.c_byte * size).from_address(int(address)), dtype)

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        data = builder.inttoptr(args[0], cgutils.voidptr_t)
        return view_at(context, builder, result, data, (args[1],))

    lowered(view, lambda address, count: signature(result, types.intp, types.intp), generate)
    return view


float32s = _typed(np.float32)
int64s = _typed(np.int64)
int32s = _typed(np.int32)
uint8s = _typed(np.uint8)
_doubles = _typed(np.float64)


def copy_bytes(to, of, count):  # type: ignore[no-untyped-def]
    """Copy `count` bytes between addresses; they must not overlap."""
    ctypes.memmove(int(to), int(of), int(count))


def _generate_copy(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    """Generate a copy: one or two moves for 4, 8, 16 or 32 bytes, else the C library's memcpy."""
    target, source = (builder.inttoptr(a, cgutils.voidptr_t) for a in args[:2])
    one, word = ir.Constant(ir.IntType(64), 1), ir.IntType(64)
    done = builder.append_basic_block("copied")
    other = builder.append_basic_block("copy.any")
    # Small rows are common, and a call would cost more than the copy.
    choice = builder.switch(args[2], other)
    for count in (4, 8, 16, 32):
        block = builder.append_basic_block(f"copy.{count}")
        choice.add_case(word(count), block)
        builder.position_at_end(block)
        _raw_memcpy(builder, target, source, word(count), one)
        builder.branch(done)
    builder.position_at_end(other)
    _raw_memcpy(builder, target, source, args[2], one)
    builder.branch(done)
    builder.position_at_end(done)
    return context.get_dummy_value()


lowered(
    copy_bytes,
    lambda to, of, count: signature(types.void, types.intp, types.intp, types.intp),
    _generate_copy,
)


def prefetch(address):  # type: ignore[no-untyped-def]
    """Prefetch the cache line at `address`; never faults. Does nothing in Python."""


def _generate_prefetch(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    word = ir.IntType(32)
    kind = ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t, word, word, word])
    instruction = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
    builder.call(instruction, [builder.inttoptr(args[0], cgutils.voidptr_t), word(0), word(2), word(1)])
    return context.get_dummy_value()


lowered(prefetch, lambda address: signature(types.void, types.intp), _generate_prefetch)


def count_at_most(address, limit):  # type: ignore[no-untyped-def]
    """Number of the 8 float64 at `address` that are at most `limit`."""
    return int(np.count_nonzero(_doubles(address, 8) <= limit))


def _generate_count(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    eight = ir.VectorType(ir.DoubleType(), 8)
    values = builder.load(builder.inttoptr(args[0], eight.as_pointer()), align=8)
    limit = builder.insert_element(ir.Constant(eight, ir.Undefined), args[1], ir.IntType(32)(0))
    limits = builder.shuffle_vector(limit, limit, ir.Constant(ir.VectorType(ir.IntType(32), 8), [0] * 8))
    bits = builder.bitcast(builder.fcmp_ordered("<=", values, limits), ir.IntType(8))
    return builder.zext(builder.ctpop(bits), ir.IntType(64))


lowered(
    count_at_most,
    lambda address, limit: signature(types.intp, types.intp, types.float64),
    _generate_count,
)
