"""Python functions with an inline lowering for kernels, such as views of memory.

`numba.extending.overload` would compile a function for each of them and for each caller. A kernel whose only arrays are
views also needs no reference counts, which numba leaves out if no compiled function returns an array.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import types
from numba.core import cgutils
from numba.core.typing import signature
from numba.extending import lower_builtin, type_callable
from numba.np import arrayobj
from numpy.typing import NDArray

_make_array: Any = arrayobj.make_array
_populate_array: Any = arrayobj.populate_array


def lowered(
    function: Callable[..., Any], typer: Callable[..., Any], generate: Callable[[Any, Any, Any, Any], Any]
) -> None:
    """Let kernels call `function`.

    Args:
        function: the Python function.
        typer: function of the argument types that returns the numba signature of a call.
        generate: function of context, builder, signature and values that writes the LLVM instructions.
    """
    type_callable(function)(lambda context: typer)
    lower_builtin(function, types.VarArg(types.Any))(generate)


def view_at(context: Any, builder: Any, array_type: Any, data: Any, shape: tuple[Any, ...]) -> Any:
    """LLVM value of a C-contiguous array of `shape` on the memory at `data`, not owned."""
    array = _make_array(array_type)(context, builder)
    width = context.get_constant(types.intp, context.get_abi_sizeof(context.get_data_type(array_type.dtype)))
    strides = [width]
    for length in shape[:0:-1]:
        strides.insert(0, builder.mul(strides[0], length))
    _populate_array(
        array,
        data=builder.bitcast(data, context.get_data_type(array_type.dtype).as_pointer()),
        shape=cgutils.pack_array(builder, shape),
        strides=cgutils.pack_array(builder, strides),
        itemsize=width,
        meminfo=None,
    )
    return array._getvalue()


def matrix(values: NDArray[Any], start: int, rows: int, columns: int) -> NDArray[Any]:
    """`values[start : start + rows * columns]` as a view `[rows, columns]`; bounds are not checked in kernels.

    `reshape` in a kernel also has the error for a wrong shape, which takes seconds to compile.
    """
    return values[start : start + rows * columns].reshape(rows, columns)


def _type_matrix(values: Any, start: Any, rows: Any, columns: Any) -> Any:
    if not (isinstance(values, types.Array) and values.ndim == 1 and values.layout == "C"):
        raise TypeError(f"matrix needs a contiguous vector, got {values}")
    return signature(types.Array(values.dtype, 2, "C"), values, types.intp, types.intp, types.intp)


def _generate_matrix(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    values, start, rows, columns = args
    data = builder.gep(_make_array(sig.args[0])(context, builder, values).data, [start])
    return view_at(context, builder, sig.return_type, data, (rows, columns))


lowered(matrix, _type_matrix, _generate_matrix)
