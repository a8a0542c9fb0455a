"""Matrices within flat vectors, for kernels.

`values[a:b].reshape(shape)` says the same, but numba compiles the text of the error that a wrong shape would raise
into every kernel that says it: three seconds of twenty that all kernels took to compile.
"""

from __future__ import annotations

from typing import Any

from numba import types
from numba.core import cgutils
from numba.extending import overload
from numba.np import arrayobj
from numpy.typing import NDArray

from asyncrl.shm.atomics import intrinsic

_make_array: Any = arrayobj.make_array
_populate_array: Any = arrayobj.populate_array


def matrix(values: NDArray[Any], start: int, rows: int, columns: int) -> NDArray[Any]:
    """`values[start : start + rows * columns]` as a view `[rows, columns]`. In kernels nothing checks the bounds."""
    return values[start : start + rows * columns].reshape(rows, columns)


@intrinsic
def _matrix(typing_context: Any, values: Any, start: Any, rows: Any, columns: Any) -> Any:
    """The same in a kernel."""
    if not (isinstance(values, types.Array) and values.ndim == 1 and values.layout == "C"):
        raise TypeError(f"matrix needs a contiguous vector, got {values}")
    result = types.Array(values.dtype, 2, "C")

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        of = _make_array(signature.args[0])(context, builder, args[0])
        array = _make_array(signature.return_type)(context, builder)
        width = of.itemsize
        _populate_array(
            array,
            data=builder.gep(of.data, [args[1]]),
            shape=cgutils.pack_array(builder, [args[2], args[3]]),
            strides=cgutils.pack_array(builder, [builder.mul(args[3], width), width]),
            itemsize=width,
            meminfo=None,
        )
        return array._getvalue()

    return result(values, types.intp, types.intp, types.intp), generate


@overload(matrix)  # type: ignore[untyped-decorator]
def _compiled_matrix(values, start, rows, columns):  # type: ignore[no-untyped-def]
    return lambda values, start, rows, columns: _matrix(values, start, rows, columns)
