"""Counters of a run of groups that goes on, and the checkpoint that one goes on from that was started again."""

from __future__ import annotations

from pathlib import Path

from asyncrl.config import TrainerConfig
from asyncrl.storage.resume import Resumption, prepare_resumption


def last_checkpoint(config: TrainerConfig) -> Resumption | None:
    """Where a run that torchrun has started again goes on from; None where it left nothing."""
    latest = Path(config.run_dir or "") / "checkpoints" / "latest"
    if config.run_dir is None or not latest.exists():
        return None
    return prepare_resumption(Path(config.run_dir), "latest", None, {}, restore_episodes=True)[2]


def made_before(resumed: Resumption, groups: int, fusion: str) -> tuple[int, int]:
    """Steps and updates that were made before, beyond those from which `groups` groups go on counting."""
    again = (groups - 1) * resumed.env_steps, (groups - 1) * resumed.meta.updates
    return resumed.other_steps - again[0], resumed.other_updates - (fusion != "gradients") * again[1]
