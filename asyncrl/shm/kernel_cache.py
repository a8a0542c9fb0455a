"""Where machine code is kept on disk, and what makes it stale.

A cache entry carries a stamp: name and content of the kernel's file and of every file of this package that it imports,
directly or not. Content and not time of change, so that a second installation, or another branch and back, compiles
nothing.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from numba.core.caching import FunctionCache

PACKAGE = Path(__file__).resolve().parents[1]
_IMPORT = re.compile(
    r"^[ \t]*(?:from|import)[ \t]+([\w.]+)(?:[ \t]+import[ \t]+(\([^)]*\)|[^\n]*))?", re.MULTILINE
)

Stamp = tuple[tuple[str, str], ...]


class KernelCache(FunctionCache):  # type: ignore[misc]
    """Numba's disk cache of one function under our stamp, which is taken when the function is defined."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        self._cache_file._source_stamp = source_stamp(Path(function.__code__.co_filename))


def source_stamp(file: Path, package: Path = PACKAGE) -> Stamp:
    """Name and digest of `file` and of all files of `package` that it imports, sorted by name."""
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
