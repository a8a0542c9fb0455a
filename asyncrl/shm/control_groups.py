"""Control groups (Linux) of this process, which limit its memory and its number of processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

_MEMBERSHIPS = Path("/proc/self/cgroup")
_ROOT = Path("/sys/fs/cgroup")


def control_groups(controller: str) -> Iterator[tuple[Path, int]]:
    """Yield the folders of the groups of a controller, from this process's own to the root, and their version, 1 or 2.

    A folder may be missing: in a container `/proc` may give the group's path outside of it.
    """
    for membership in _MEMBERSHIPS.read_text().splitlines() if _MEMBERSHIPS.exists() else []:
        _, controllers, path = membership.split(":", 2)
        if controllers == "":
            root, version = _ROOT, 2
        elif controller in controllers.split(","):
            root, version = _ROOT / controller, 1
        else:
            continue
        inside = root / path.lstrip("/")
        yield from ((group, version) for group in (inside, *inside.parents) if group.is_relative_to(root))
