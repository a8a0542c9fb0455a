"""Kernels: functions that numba compiles for one signature, once per installation.

`kernel` makes a kernel, and `inlined` makes a function that kernels call. Every numba function of the package is made
by one of the two, so that these rules always hold:

*One signature.* An argument of another dtype or layout is a TypeError, not a silent second compilation.
*On first use.* Importing a module compiles nothing. `Kernel.ready` loads a kernel from the disk cache, or compiles and
stores it. It is called by `prepare.py` before a run, or else by the kernel's first call.
*Once per machine.* If several processes need the same kernel, one compiles it; the others wait and load it.
*A stamp of all sources.* A kernel contains functions and constants of other files. Its cache entry records the content
of the kernel's own file and of all files of the package that it imports (`kernel_cache.py`), and is stale after an edit
of any. numba's cache checks the kernel's own file only: after an update of one of two files, old machine code ran on
the new memory layout and crashed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast, overload

import numpy.ma  # noqa: F401 - numba imports it at the first call: here once, not in every forked process
from numba import types
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompileResult, compile_extra
from numba.core.compiler import Flags as CompilerFlags
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import CPUDispatcher
from numba.core.typing import make_concrete_template

from asyncrl.shm.kernel_cache import KernelCache

Function = TypeVar("Function", bound=Callable[..., Any])
Flags = frozenset[str] | set[str]


def kernel(
    signature: Any, *, nogil: bool = True, fastmath: Flags = frozenset(), cold: bool = False
) -> Callable[[Function], Function]:
    """Compile a function for `signature`, cached on disk, without the GIL, with NumPy's rules for division.

    The Python function stays available as `.py_func`.

    Args:
        signature: numba signature, as text such as `"int64(int64[::1], int64)"` or as an object such as
            `types.void(types.float64[::1])`.
        nogil: False only for kernels of a few nanoseconds, where releasing and acquiring the GIL would cost more than
            the kernel (37 ns of about 230) and another thread could run in between.
        fastmath: LLVM's floating-point flags; `{"reassoc"}` allows a sum to be vectorized.
        cold: compile it on its first call and not before a run, because few runs need it.
    """

    def compiled(function: Function) -> Function:
        return cast("Function", Kernel(function, signature, nogil=nogil, fastmath=fastmath, cold=cold))

    return compiled


@overload
def inlined(function: Function) -> Function: ...


@overload
def inlined(*, fastmath: Flags) -> Callable[[Function], Function]: ...


def inlined(function: Any = None, *, fastmath: Flags = frozenset()) -> Any:
    """Make a function that is compiled into each kernel that calls it; callable from Python for tests.

    Use `@inlined`, or `@inlined(fastmath={"reassoc"})`: a kernel's flags do not apply to the functions it calls.
    """
    if function is None:
        return lambda function: Inlined(function, fastmath)
    return Inlined(function, fastmath)


def declared() -> list[Kernel]:
    """All kernels of the imported modules, in the order of their definition."""
    return list(_DECLARED)


class Kernel(CPUDispatcher):  # type: ignore[misc]
    """Result of `kernel`: a numba dispatcher that compiles its one signature when first needed.

    Attributes:
        declared: the signature.
        cold: see `kernel`, which explains the arguments.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        signature: Any,
        *,
        nogil: bool,
        fastmath: Flags,
        cold: bool,
    ) -> None:
        # Kernels are not called from C: without that wrapper they compile faster.
        options = {**_OPTIONS, "nogil": nogil, "fastmath": set(fastmath), "no_cfunc_wrapper": True}
        super().__init__(function, targetoptions=options)
        self.declared = signature
        self.cold = cold
        self._cache = KernelCache(function)
        self._compiler._customize_flags = _Flags
        if "<" not in function.__qualname__:  # defined at module level, not within a function
            _DECLARED.append(self)

    @property
    def is_ready(self) -> bool:
        """Whether this process has the machine code."""
        return not self._can_compile

    @property
    def is_stored(self) -> bool:
        """Whether the disk cache has the machine code."""
        return self._cache.has(self.declared, self.targetctx)

    def ready(self, wait: bool = True) -> bool:
        """Load the machine code, or compile and store it, unless ready already. Any thread.

        Args:
            wait: False: return at once if another process is compiling the kernel.

        Returns:
            `is_ready`.
        """
        with global_compiler_lock:
            if self._can_compile:
                with self._cache.alone(self.declared, self.targetctx, wait) as mine:
                    if not mine:
                        return False
                    self.compile(self.declared)
                self.disable_compile()
        return True

    def get_call_template(self, args: Any, kws: Any) -> Any:
        """Type of a call within another kernel; called by numba."""
        self.ready()
        return super().get_call_template(args, kws)

    def _compile_for_args(self, *args: Any, **kws: Any) -> Any:
        """Callable for argument types without machine code; called by numba at the first call."""
        self.ready()
        return self  # it now has its signature and rejects other arguments

    def __reduce__(self) -> str:
        return str(self.__qualname__)  # pickled by reference, like a function


class Inlined(CPUDispatcher):  # type: ignore[misc]
    """Result of `inlined`: a numba dispatcher whose code becomes part of the calling kernels.

    numba would compile it completely: a Python wrapper, a C wrapper, all optimisations, machine code. A kernel uses
    none of that, and it was a third of the compilation time of the kernels. So kernels get the typed and lowered code
    only, which LLVM optimises once, in the kernel. A call from Python compiles as usual.
    """

    def __init__(self, function: Callable[..., Any], fastmath: Flags) -> None:
        super().__init__(function, targetoptions={**_OPTIONS, "nogil": True, "fastmath": set(fastmath)})
        self._fragments: dict[Any, CompileResult] = {}

    def get_call_template(self, args: Any, kws: Any) -> Any:
        """Type of a call within a kernel; called by numba. Types and lowers the function at the first call."""
        signature, args = self._compiler.fold_argument_types(args, kws)
        args = tuple(types.unliteral(argument) for argument in args)
        if args not in self._fragments:
            self._fragments[args] = self._fragment(args)
        name = self.py_func.__name__
        template = make_concrete_template(name, key=name, signatures=[self._fragments[args].signature])
        return template, signature, args, {}

    def get_overload(self, sig: Any) -> Any:
        """Code of that call: the key under which `_fragment` registered it; called by numba."""
        return self._fragments[tuple(sig)].entry_point

    def _fragment(self, args: tuple[Any, ...]) -> CompileResult:
        """Type and lower the function for `args`."""
        flags = _Flags()
        self.targetdescr.options.parse_as_flags(flags, self.targetoptions)
        flags.no_compile = flags.no_cpython_wrapper = flags.no_cfunc_wrapper = True
        context = self.targetctx
        library = _Fragment(context.codegen(), self.py_func.__qualname__)
        result = compile_extra(
            self.typingctx, context, self.py_func, args, None, flags, locals={}, library=library
        )
        context.insert_user_function(library, result.fndesc, [library])
        return result._replace(entry_point=library)


class _Flags(CompilerFlags):  # type: ignore[misc]
    """Numba's flags of one compilation, which numba compares with others for every call that it types.

    Reading each of about thirty options was a tenth of the kernels' compilation time.
    """

    def values(self) -> dict[str, Any]:
        """All options with their values."""
        return {**_DEFAULTS, **self._values}


class _Fragment(JITCodeLibrary):  # type: ignore[misc]
    """Code library linked into kernels, not optimised separately and not added to the execution engine."""

    def _optimize_final_module(self) -> None:
        pass

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._finalized = True


_OPTIONS = {"nopython": True, "boundscheck": None, "error_model": "numpy", "_nrt": False}
_DEFAULTS = {name: option.default for name, option in CompilerFlags.options.items()}
_DECLARED: list[Kernel] = []
