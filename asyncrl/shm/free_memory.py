"""Available memory, limited by the machine and by its control groups."""

from __future__ import annotations

from pathlib import Path

_MEMORY_INFO = Path("/proc/meminfo")
_CONTROL_GROUPS = Path("/proc/self/cgroup")
_CONTROL_GROUP_ROOT = Path("/sys/fs/cgroup")


def available_bytes() -> int:
    """Bytes that can still be allocated: the minimum over the machine and the control groups.

    Reads `MemAvailable`, and limit and usage of this process's memory control group and its parents (versions 1 and 2);
    inactive file cache counts as free. On systems without `/proc/meminfo`, from psutil.
    """
    if not _MEMORY_INFO.exists():
        import psutil

        return int(psutil.virtual_memory().available)
    lines = (line.split() for line in _MEMORY_INFO.read_text().splitlines())
    machine = next(int(words[1]) * 1024 for words in lines if words[0] == "MemAvailable:")
    return min([machine, *_control_group_bytes()])


def _control_group_bytes() -> list[int]:
    """Free bytes of each memory control group of this process; groups without a limit are left out."""
    left: list[int] = []
    memberships = _CONTROL_GROUPS.read_text().splitlines() if _CONTROL_GROUPS.exists() else []
    for membership in memberships:
        _, controllers, path = membership.split(":", 2)
        if controllers == "":
            root, limit, usage = _CONTROL_GROUP_ROOT, "memory.max", "memory.current"
        elif "memory" in controllers.split(","):
            root = _CONTROL_GROUP_ROOT / "memory"
            limit, usage = "memory.limit_in_bytes", "memory.usage_in_bytes"
        else:
            continue
        inside = root / path.lstrip("/")
        # /proc may give the group's path outside of the container: missing files are skipped.
        groups = (g for g in (inside, *inside.parents) if g.is_relative_to(root))
        left += [free for g in groups if (free := _group_bytes(g, limit, usage)) is not None]
    return left


def _group_bytes(group: Path, limit: str, usage: str) -> int | None:
    """Limit minus usage of one control group, inactive file cache excluded; None without a limit."""
    try:
        most, used = (group / limit).read_text().strip(), int((group / usage).read_text())
        statistics = (group / "memory.stat").read_text()
    except (OSError, ValueError):
        return None
    if most == "max":
        return None
    cache = dict(line.split() for line in statistics.splitlines())
    droppable = int(cache.get("total_inactive_file", cache.get("inactive_file", 0)))
    return max(0, int(most) - used + droppable)
