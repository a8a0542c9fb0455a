"""Available memory, limited by the machine and by its control groups."""

from __future__ import annotations

from pathlib import Path

from asyncrl.shm.control_groups import control_groups

_FILES = {1: ("memory.limit_in_bytes", "memory.usage_in_bytes"), 2: ("memory.max", "memory.current")}
"""Files of limit and usage of a control group, by the version of control groups."""
_MEMORY_INFO = Path("/proc/meminfo")


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
    groups = (_group_bytes(group, *_FILES[version]) for group, version in control_groups("memory"))
    return min([machine, *(free for free in groups if free is not None)])


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
