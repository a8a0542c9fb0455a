"""Run directories written by hand, for commands that read them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from asyncrl.algorithms import ALGORITHMS
from asyncrl.config import TrainerConfig
from asyncrl.storage.config_file import dump_config


def write_run(
    path: Path,
    *,
    algo: str = "dqn",
    env: str = "CartPole-v1",
    seed: int = 0,
    options: Mapping[str, Any] | None = None,
    trainer: Mapping[str, Any] | None = None,
    summary: Mapping[str, Any] | None = None,
    lines: Iterable[Mapping[str, Any]] = (),
    evaluations: Iterable[tuple[int, float]] = (),
    age_seconds: float = 0.0,
) -> Path:
    """Write the files of a run; `summary` None omits it, as for a killed run."""
    (path / "checkpoints").mkdir(parents=True)
    (path / ".lock").write_text("pid 1 on here")
    config = TrainerConfig(env=env, algo=algo, seed=seed, run_dir=str(path), **(trainer or {}))
    (path / "config.toml").write_text(dump_config(config, ALGORITHMS[algo](**(options or {}))))
    entries = [
        *lines,
        *({"eval/mean_reward": value, "eval/total_timesteps": steps} for steps, value in evaluations),
    ]
    (path / "metrics.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    if summary is not None:
        whole = {"algo": algo, "env": env, "seed": seed, "state": "finished", "env_steps": 0, **summary}
        (path / "summary.json").write_text(json.dumps(whole))
    if age_seconds:
        for file in path.iterdir():
            stat = file.stat()
            os.utime(file, (stat.st_atime, stat.st_mtime - age_seconds))
    return path
