"""Kernels: functions that numba compiles for one signature, once per installation.

`kernel` makes one of a function, `inlined` makes a function that kernels call. Every numba function of the package
goes through one of the two, so that these rules hold everywhere:

*One signature.* An argument of another dtype or layout is a TypeError, not a silent second compilation.
*On first use.* Importing a module compiles nothing. A kernel is loaded from the disk cache, or compiled and stored
there, by `Kernel.ready`: called by `prepare.py` before a run, else by the kernel's first call.
*Once on a machine.* Processes that need the same kernel at the same time compile it once: the others wait for it and
load it.
*A stamp of all sources.* A kernel has the functions and constants of other files compiled into it. The cache entry
names the content of the kernel's own file and of every file of the package that this one imports
(`kernel_cache.py`); an edit of any of them makes it stale. numba's own cache watches the kernel's file alone: after
an update of one of two files the old machine code ran on the new memory layout and died of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast, overload

import numpy.ma  # noqa: F401 - numba asks for it at the first call: here once, not in every process that is forked
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
        nogil: False only for kernels of a few nanoseconds, where giving the GIL away and taking it back would
            cost more than the kernel (37 ns of about 230) and invite another thread in between.
        fastmath: LLVM's flags for floating point; `{"reassoc"}` lets a sum become vector instructions.
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
    """A function that kernels call: compiled into each of them, callable from Python for tests.

    `@inlined`, or `@inlined(fastmath={"reassoc"})`: the flags of a kernel do not hold for what it calls.
    """
    if function is None:
        return lambda function: Inlined(function, fastmath)
    return Inlined(function, fastmath)


def declared() -> list[Kernel]:
    """All kernels of the modules that are imported, in the order of their definition."""
    return list(_DECLARED)


class Kernel(CPUDispatcher):  # type: ignore[misc]
    """What `kernel` makes: a numba dispatcher that compiles its one signature when it is first needed.

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
        # Nobody calls a kernel from C: without that wrapper it compiles faster.
        options = {**_OPTIONS, "nogil": nogil, "fastmath": set(fastmath), "no_cfunc_wrapper": True}
        super().__init__(function, targetoptions=options)
        self.declared = signature
        self.cold = cold
        self._cache = KernelCache(function)
        self._compiler._customize_flags = _Flags
        if "<" not in function.__qualname__:  # of a module, not of a function in it
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
        """Load the machine code, or compile and store it; does nothing the second time. Any thread.

        Args:
            wait: False returns where another process compiles it just now.

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
        """Numba's question what a call within another kernel returns."""
        self.ready()
        return super().get_call_template(args, kws)

    def _compile_for_args(self, *args: Any, **kws: Any) -> Any:
        """Numba's question what to call for arguments that it has no machine code for: the first call."""
        self.ready()
        return self  # which now knows its signature, and refuses other arguments

    def __reduce__(self) -> str:
        return str(self.__qualname__)  # pickled by reference, like a function


class Inlined(CPUDispatcher):  # type: ignore[misc]
    """What `inlined` makes: a numba dispatcher whose code within kernels is not a function of its own.

    numba would compile it to the end: a wrapper for Python, one for C, all optimisations, machine code. Nothing of that
    is used where it is compiled into a kernel, and it was a third of the time that the kernels took. So kernels get
    its typed and lowered code and nothing else; LLVM optimises that once, in the kernel. A call from Python compiles as
    usual.
    """

    def __init__(self, function: Callable[..., Any], fastmath: Flags) -> None:
        super().__init__(function, targetoptions={**_OPTIONS, "nogil": True, "fastmath": set(fastmath)})
        self._fragments: dict[Any, CompileResult] = {}

    def get_call_template(self, args: Any, kws: Any) -> Any:
        """Numba's question what a call within a kernel returns."""
        signature, args = self._compiler.fold_argument_types(args, kws)
        args = tuple(types.unliteral(argument) for argument in args)
        if args not in self._fragments:
            self._fragments[args] = self._fragment(args)
        name = self.py_func.__name__
        template = make_concrete_template(name, key=name, signatures=[self._fragments[args].signature])
        return template, signature, args, {}

    def get_overload(self, sig: Any) -> Any:
        """Numba's question which code that call runs: the key under which `_fragment` made it known."""
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
    """Numba's flags of one compilation, which it compares with others for every call that it types.

    Asking each of some thirty options for its value took a tenth of the time that the kernels took.
    """

    def values(self) -> dict[str, Any]:
        """All options with their values."""
        return {**_DEFAULTS, **self._values}


class _Fragment(JITCodeLibrary):  # type: ignore[misc]
    """Code that is linked into that of kernels: neither optimised on its own nor given to the execution engine."""

    def _optimize_final_module(self) -> None:
        pass

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._finalized = True


_OPTIONS = {"nopython": True, "boundscheck": None, "error_model": "numpy", "_nrt": False}
_DEFAULTS = {name: option.default for name, option in CompilerFlags.options.items()}
_DECLARED: list[Kernel] = []
