"""Disk cache of kernels: location, stale entries, locking.

*Location.* The first writable one of: `NUMBA_CACHE_DIR` if it is set; `__pycache__` beside the sources; the user's
cache folder (`XDG_CACHE_HOME`, else `~/.cache`), for read-only site-packages; a folder of this user in the system's
temporary folder, which lasts until that is cleaned. All processes of a user find the same one. Without any, each
process compiles for itself.

*Stale entries.* An entry has a stamp: name and content of the kernel's file and of every file of this package that it
imports, directly or not. It uses content and not modification time, so that switching branches and back compiles
nothing.

*Locking.* One process at a time compiles, by a lock on a file beside the entry. Entries are replaced atomically, so
readers need no lock.

*Why not numba's own*, in a folder named by a hash of the sources? The hash must cover every file that a kernel is made
of: one hash of all would compile all 57 kernels after an edit of any of their 24 files and leave a folder behind, and
one per kernel is the stamp above. The search for a writable folder, the lock (numba's processes compile the same kernel
twice), damaged entries and the load without a refresh of the target would stay: it saves about a fifth of this file.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import os
import re
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from numba.core import config
from numba.core.caching import CompileResultCacheImpl, FunctionCache, IndexDataCacheFile, _CacheLocator

PACKAGE = Path(__file__).resolve().parents[1]
_IMPORT = re.compile(
    r"^[ \t]*(?:from|import)[ \t]+([\w.]+)(?:[ \t]+import[ \t]+(\([^)]*\)|[^\n]*))?", re.MULTILINE
)

Stamp = tuple[tuple[str, str], ...]


class KernelCache(FunctionCache):  # type: ignore[misc]
    """Numba's disk cache of one function, with our folder and our stamp, both determined at its definition.

    Attributes:
        folder: folder of its entries, None if nothing can be stored.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        source = Path(function.__code__.co_filename)
        self.folder = cache_folder(source.parent) if source.is_file() else None
        self._name = repr(function)
        self._py_func = function
        self._impl = _Implementation(function, self.folder)
        self._cache_path = str(self.folder)
        stamp = source_stamp(source) if self.folder else ()
        self._cache_file = _CacheFile(self._cache_path, self._impl.filename_base, stamp)
        self._enabled = self.folder is not None

    def has(self, signature: Any, target: Any) -> bool:
        """Whether an entry for this signature exists."""
        if self.folder is None:
            return False
        name = self._cache_file._load_index().get(self._index_key(signature, target.codegen()))
        return name is not None and (self.folder / name).is_file()

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Load an entry, None if it is missing or unreadable (after a crash of the machine); called by numba.

        Numba would refresh `target_context` first, which imports everything that it can compile. That takes a third of
        a second and is not needed for compiled code. A compilation refreshes it by itself.
        """
        try:
            return self._load_overload(sig, target_context)
        except Exception:
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Store an entry; a disk error is ignored. Called by numba."""
        with contextlib.suppress(OSError):
            super().save_overload(sig, data)

    @contextlib.contextmanager
    def alone(self, signature: Any, target: Any, wait: bool) -> Iterator[bool]:
        """Context in which no other process compiles the kernel; yields False if another one holds the lock.

        Takes no lock if the entry is stored already or the lock file cannot be made.

        Args:
            signature: of the kernel.
            target: numba's target context.
            wait: wait for the lock; then it does not yield False.
        """
        if self.folder is None or self.has(signature, target):
            yield True
            return
        path = self.folder / f"{self._impl.filename_base}.lock"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:
            yield True
            return
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                yield False
                return
            except OSError:  # a file system without locks: the kernel may be compiled twice
                pass
            yield True
            # A process that waits for this file, or makes a new one, checks for the entry first.
            path.unlink(missing_ok=True)
        finally:
            os.close(descriptor)


class _CacheFile(IndexDataCacheFile):  # type: ignore[misc]
    """Numba's files of one function's entries; an index that cannot be read (after a crash of the machine) is empty."""

    def _load_index(self) -> dict[Any, str]:
        try:
            return super()._load_index()  # type: ignore[no-any-return]
        except Exception:
            return {}


class _Implementation(CompileResultCacheImpl):  # type: ignore[misc]
    """Numba's serialisation of compiled code, with a given folder."""

    def __init__(self, function: Callable[..., Any], folder: Path | None) -> None:
        self._lineno = function.__code__.co_firstlineno
        self._locator = _Locator(function, folder)
        name = f"{Path(function.__code__.co_filename).stem}.{function.__qualname__}"
        self._filename_base = self.get_filename_base(name, getattr(sys, "abiflags", ""))


class _Locator(_CacheLocator):  # type: ignore[misc]
    """Numba's locator of one function's entries."""

    def __init__(self, function: Callable[..., Any], folder: Path | None) -> None:
        self._py_file = function.__code__.co_filename
        self._line = function.__code__.co_firstlineno
        self._folder = folder

    def get_cache_path(self) -> str:
        return str(self._folder)

    def get_source_stamp(self) -> Stamp:
        return source_stamp(Path(self._py_file))

    def get_disambiguator(self) -> str:
        return str(self._line)


@functools.cache
def cache_folder(sources: Path) -> Path | None:
    """Cache folder for kernels of source files in `sources`, or None if none is writable."""
    name = f"{sources.name}_{hashlib.sha256(os.fsencode(sources.absolute())).hexdigest()[:16]}"
    if config.CACHE_DIR and is_writable(folder := Path(config.CACHE_DIR) / name):
        return folder
    if is_writable(folder := sources / "__pycache__"):
        return folder
    with contextlib.suppress(RuntimeError):  # no home directory
        user = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
        if is_writable(folder := Path(user) / "asyncrl" / "kernels" / name):
            return folder
    private = temporary_folder()
    # Machine code is executed, so never take it from a folder that another user can write to.
    if (
        private is not None
        and is_writable(private)
        and _is_own(private)
        and is_writable(folder := private / name)
    ):
        return folder
    return None


def temporary_folder() -> Path | None:
    """This user's folder in the system's temporary folder, None if there is no such that can be written."""
    try:
        return Path(tempfile.gettempdir()) / f"asyncrl-kernels-{os.getuid()}"
    except FileNotFoundError:
        return None


def is_writable(folder: Path) -> bool:
    """Whether a file can be created in `folder`; creates the folder if it does not exist."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError:
        return False
    return True


def _is_own(folder: Path) -> bool:
    status = folder.lstat()
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o022


def source_stamp(file: Path, package: Path = PACKAGE) -> Stamp:
    """Name and digest of `file` and of all files of `package` that it imports, directly or not, sorted by name."""
    found: dict[Path, str] = {}
    waiting = [file]
    while waiting:
        path = waiting.pop()
        if path not in found:
            found[path], imports = _read(path, package)
            waiting += imports
    return tuple(sorted((path.name, digest) for path, digest in found.items()))


@functools.cache
def _read(path: Path, package: Path) -> tuple[str, tuple[Path, ...]]:
    """Digest of a file's content, and the files of `package` that it imports."""
    content = path.read_bytes()
    return hashlib.sha256(content).hexdigest(), tuple(_imports(content.decode("utf-8"), package))


def _imports(text: str, package: Path) -> Iterator[Path]:
    for module, names in _IMPORT.findall(text):
        first, *rest = module.split(".")
        if first != package.name:
            continue
        place = package.joinpath(*rest)
        for path in (place.with_suffix(".py"), place / "__init__.py"):
            if path.is_file():
                yield path
        # `from package import module` names a file too.
        yield from (path for name in re.findall(r"\w+", names) if (path := place / f"{name}.py").is_file())
