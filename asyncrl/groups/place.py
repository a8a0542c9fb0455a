"""Place of a process among the groups, from torchrun's environment variables. Imports no torch."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass

from asyncrl.errors import ConfigurationError


@dataclass(frozen=True)
class Place:
    """Rank of this group, and address of the job's store.

    Attributes:
        rank, size: rank of this group, and number of groups.
        host, port: address of the store by which the ranks find each other.
        life: number of restarts of this rank so far.
        agents: number of torchrun's agents. An agent restarts all of its ranks if one of them dies.
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


def quiet_stores() -> None:
    """Let torch say nothing of a store that is lost, which we report; called before torch is imported.

    Its warning has the C++ frames. A level that the user has set stays.
    """
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")


def place_of_process(environ: Mapping[str, str] = os.environ) -> Place | None:
    """Place that torchrun has given this process; None if it is not a rank, or the only one.

    Raises:
        ConfigurationError: a variable is not a whole number in its range.
    """
    if not {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= set(environ):
        return None
    size = _number(environ, "WORLD_SIZE")
    if size < 2:
        return None
    return Place(
        rank=_number(environ, "RANK", most=size - 1),
        size=size,
        host=environ["MASTER_ADDR"],
        port=_number(environ, "MASTER_PORT", most=65535),
        life=_number({"TORCHELASTIC_RESTART_COUNT": "0", **environ}, "TORCHELASTIC_RESTART_COUNT"),
        agents=_number({"GROUP_WORLD_SIZE": "1", **environ}, "GROUP_WORLD_SIZE"),
        agent_store=environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
    )


def ranks_of_process(environ: Mapping[str, str] = os.environ) -> int | None:
    """Number of ranks that torchrun has started, this process among them; None if it is not a rank.

    Raises what `place_of_process` raises.
    """
    if "RANK" not in environ:
        return None
    place = place_of_process(environ)
    return 1 if place is None else place.size


def _number(environ: Mapping[str, str], name: str, most: int = 1 << 30) -> int:
    text = environ[name]
    if not text.isdecimal() or int(text) > most:
        raise ConfigurationError(
            f"{name} must be a whole number from 0 to {most}, got {text!r}",
            fix="start the ranks with torchrun, which sets it, or remove it from the environment",
        )
    return int(text)
