"""The conditions that other people's machines have, for scripts that show that results do not depend on them.

quiet       as it is
one-core    the process and all its children pinned to one core
busy        a spinning neighbour on every core
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
    """Hold this process, and what it starts meanwhile, under a condition."""
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
