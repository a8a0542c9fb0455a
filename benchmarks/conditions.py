"""Load conditions of other machines, for scripts that show that results do not depend on them.

quiet       no change
one-core    the process and all its children are pinned to one core
busy        a process spins on every core
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator

CONDITIONS = ("quiet", "one-core", "busy")


@contextlib.contextmanager
def condition(name: str) -> Iterator[None]:
    """Apply a condition to this process and the processes that it starts meanwhile."""
    cores = os.sched_getaffinity(0)
    spinners: list[subprocess.Popen[bytes]] = []
    try:
        if name == "one-core":
            os.sched_setaffinity(0, {min(cores)})
        elif name == "busy":
            for core in sorted(cores):
                spin = f"import os\nos.sched_setaffinity(0, {{{core}}})\nwhile True: pass"
                spinners.append(subprocess.Popen([sys.executable, "-c", spin]))
        elif name != "quiet":
            raise ValueError(f"condition must be one of {', '.join(CONDITIONS)}, got {name!r}")
        yield
    finally:
        os.sched_setaffinity(0, cores)
        for spinner in spinners:
            spinner.kill()
            spinner.wait()
