"""Kernels: functions that numba compiles for one signature, once per installation.

`kernel` makes one of a function, `inlined` makes a function that kernels call. Every numba function of the package
goes through one of the two, so that these rules hold everywhere:

*One signature.* An argument of another dtype or layout is a TypeError, not a silent second compilation.
*On first use.* Importing a module compiles nothing. A kernel is loaded from the disk cache, or compiled and stored
there, when it is first called or when `Kernel.ready` is.
*A stamp of all sources.* A kernel has the functions and constants of other files compiled into it. The cache entry
names the content of the kernel's own file and of every file of the package that this one imports
(`kernel_cache.py`); an edit of any of them makes it stale. numba's own cache watches the kernel's file alone: after
an update of one of two files the old machine code ran on the new memory layout and died of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from numba import njit
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import CPUDispatcher

from asyncrl.shm.kernel_cache import KernelCache

Function = TypeVar("Function", bound=Callable[..., Any])


def kernel(
    signature: Any, *, nogil: bool = True, fastmath: frozenset[str] | set[str] = frozenset()
) -> Callable[[Function], Function]:
    """Compile a function for `signature`, cached on disk, without the GIL, with NumPy's rules for division.

    The Python function stays available as `.py_func`.

    Args:
        signature: numba signature, as text such as `"int64(int64[::1], int64)"` or as an object such as
            `types.void(types.float64[::1])`.
        nogil: False only for kernels of a few nanoseconds, where giving the GIL away and taking it back would
            cost more than the kernel (37 ns of about 230) and invite another thread in between.
        fastmath: LLVM's flags for floating point; `{"reassoc"}` lets a sum become vector instructions.
    """

    def compiled(function: Function) -> Function:
        return cast("Function", Kernel(function, signature, nogil=nogil, fastmath=fastmath))

    return compiled


def prepare() -> None:
    """Load or compile every kernel of the modules that are imported, before this process forks or trains."""
    for waiting in list(_DECLARED):
        waiting.ready()


def inlined(function: Function) -> Function:
    """A function that kernels call: compiled into each of them, callable from Python for tests."""
    return cast("Function", njit(nogil=True, error_model="numpy")(function))


class Kernel(CPUDispatcher):  # type: ignore[misc]
    """What `kernel` makes: a numba dispatcher that compiles its one signature when it is first needed.

    Args:
        function: the Python function.
        signature: see `kernel`, like the other two.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        signature: Any,
        *,
        nogil: bool,
        fastmath: frozenset[str] | set[str],
    ) -> None:
        options = {"nopython": True, "boundscheck": None, "error_model": "numpy"}
        super().__init__(function, targetoptions=options | {"nogil": nogil, "fastmath": set(fastmath)})
        self.declared = signature
        self._cache = KernelCache(function)
        if "<" not in function.__qualname__:  # of a module, not of a function in it
            _DECLARED.append(self)

    def ready(self) -> None:
        """Load the machine code, or compile and store it; does nothing the second time. Any thread."""
        with global_compiler_lock:
            if self._can_compile:
                self.compile(self.declared)
                self.disable_compile()

    def get_call_template(self, args: Any, kws: Any) -> Any:
        """Numba's question what a call within another kernel returns."""
        self.ready()
        return super().get_call_template(args, kws)

    def _compile_for_args(self, *args: Any, **kws: Any) -> Any:
        """Numba's question what to call for arguments that it has no machine code for: the first call."""
        self.ready()
        return self  # which now knows its signature, and refuses other arguments

    def __reduce__(self) -> str:
        return str(self.__qualname__)  # pickled by reference, like a function


_DECLARED: list[Kernel] = []
