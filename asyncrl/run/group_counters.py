"""Counters of a resumed run of several groups, and the checkpoint of one that torchrun has restarted."""

from __future__ import annotations

from pathlib import Path

from asyncrl.config import TrainerConfig
from asyncrl.storage.resume import Resumption, prepare_resumption


def last_checkpoint(config: TrainerConfig) -> Resumption | None:
    """Latest checkpoint of a run that torchrun has restarted; None if there is none."""
    latest = Path(config.run_dir or "") / "checkpoints" / "latest"
    if config.run_dir is None or not latest.exists():
        return None
    return prepare_resumption(Path(config.run_dir), "latest", None, {}, restore_episodes=True)[2]


def made_before(resumed: Resumption, groups: int, fusion: str) -> tuple[int, int]:
    """Steps and updates of the earlier run that are not in the counters from which `groups` groups count on."""
    again = (
        (groups - 1) * resumed.meta.env_steps,
        (groups - 1) * resumed.meta.updates,
    )  # the others have no rows
    return resumed.other_steps - again[0], resumed.other_updates - (fusion != "gradients") * again[1]
