"""Sections of `asyncrl train --help`: groups of the run's options."""

from __future__ import annotations

from asyncrl.config import TrainerConfig
from asyncrl.options import option_help

SECTIONS = {
    "what": ("algo", "seed", "num_actors", "envs_per_actor", "env_kwargs", "wrappers", "init_from"),
    "stopping": ("total_steps", "max_seconds", "target_return", "target_training_return"),
    "evaluation": (
        "eval_interval_steps",
        "eval_interval_seconds",
        "eval_episodes",
        "target_eval_episodes",
        "eval_max_episode_steps",
    ),
    "machine": (
        "device",
        "torch_threads",
        "burst_seconds",
        "step_timeout_seconds",
        "ready_timeout_seconds",
        "max_restarts",
        "max_actor_bytes",
    ),
    "groups": (
        "groups",
        "fusion",
        "fusion_interval",
        "max_fusion_staleness",
        "fusion_dtype",
        "fusion_learning_rate",
        "fusion_momentum",
        "fusion_moments",
    ),
    "files": (
        "run_dir",
        "report_interval_seconds",
        "report_interval_steps",
        "checkpoint_interval_seconds",
        "checkpoints_kept",
        "save_replay_buffer",
    ),
    "page": ("http", "host"),
}
"""Options of the run by title. An option in none of them is listed under "more"."""
WITHOUT_HELP = ("env", "env_file")
"""Options without a flag in help: the first argument, and one that only a run's own `config.toml` sets."""


def sections() -> dict[str, tuple[str, ...]]:
    """Options of the run by section."""
    listed = [name for names in SECTIONS.values() for name in names]
    rest = tuple(name for name in option_help(TrainerConfig) if name not in (*listed, *WITHOUT_HELP))
    return SECTIONS | ({"more": rest} if rest else {})
