"""A process's place among the groups, as torchrun's environment variables tell it. Loads no torch."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Place:
    """Rank of this group, and where the ranks meet.

    Attributes:
        rank, size: of this group, and how many there are.
        host, port: of the store where they find each other.
        life: how often this rank was started again.
        agents: torchrun's agents. One starts all of its ranks again where one of them dies; each of several its own.
        agent_store: whether torchrun's agent serves the store; otherwise rank 0 does.
    """

    rank: int
    size: int
    host: str
    port: int
    life: int = 0
    agents: int = 1
    agent_store: bool = False

    @property
    def machine(self) -> str:
        """Name of this host, for messages."""
        return platform.node() or "unknown host"


def place_of_process(environ: Mapping[str, str] = os.environ) -> Place | None:
    """The place that torchrun gave this process; None where it is no rank, or the only one."""
    if not {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= set(environ):
        return None
    size = int(environ["WORLD_SIZE"])
    if size < 2:
        return None
    return Place(
        rank=int(environ["RANK"]),
        size=size,
        host=environ["MASTER_ADDR"],
        port=int(environ["MASTER_PORT"]),
        life=int(environ.get("TORCHELASTIC_RESTART_COUNT", "0")),
        agents=int(environ.get("GROUP_WORLD_SIZE", "1")),
        agent_store=environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
    )
