"""What a run can be told besides its algorithm's hyper-parameters: one frozen record.

The docstring under a field is its help on the command line and its comment in `config.toml`. An algorithm's
own options stand in its record (`asyncrl.algorithms`); together the two records reproduce a run.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal

from asyncrl.options import coerce, option_help, require_at_least, require_positive


@dataclass(frozen=True, kw_only=True)
class TrainerConfig:
    """Every option of a run except its algorithm's.

    Raises:
        ValueError: a value of the wrong type or outside its range; the text begins with the option's name.
    """

    env: str
    """Gymnasium id of the environment, or the name of the factory that was given instead."""

    algo: str
    """Name of the algorithm."""

    seed: int = 0
    """Seed of everything random; actors, environments and the learner draw from streams spawned from it."""

    num_actors: int | None = None
    """Actor processes; none means one for each core but one, and at least one."""

    envs_per_actor: int = 16
    """Environments that each actor steps in turn, with one forward pass of the policy for all of them;
    a factory that returns a vector of environments decides it by itself."""

    total_steps: int | None = None
    """Stop after this many environment steps over all actors."""

    max_seconds: float | None = None
    """Stop after this many seconds of training, evaluation pauses excluded."""

    target_return: float | None = None
    """Stop when a greedy evaluation over `target_eval_episodes` episodes has at least this mean return."""

    target_training_return: float | None = None
    """Stop when the mean of the last 100 training episodes over all actors is at least this (100 episodes finished)."""

    eval_interval_steps: int | None = 25_000
    """Environment steps between greedy evaluations; none evaluates only at the end."""

    eval_interval_seconds: float | None = None
    """Seconds between greedy evaluations in place of steps; results then depend on the machine's speed."""

    eval_episodes: int = 10
    """Episodes of each regular evaluation."""

    target_eval_episodes: int = 100
    """Episodes of the evaluation that confirms `target_return`; training pauses meanwhile."""

    eval_max_episode_steps: int | None = None
    """Steps after which an evaluation ends an episode as it stands; none is the environment's own limit, or 27000."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where the learner's network lives; auto takes a GPU where there is one and the network is large."""

    torch_threads: int = 1
    """Threads of torch in the learner; more than one collapses when the actors keep the cores busy."""

    burst_seconds: float = 0.01
    """Seconds of updates that the learner's thread does at a stretch before the event loop has a say."""

    step_timeout_seconds: float = 60.0
    """An environment whose step takes longer counts as hung."""

    ready_timeout_seconds: float = 60.0
    """An actor whose environments take longer to be built and reset for the first time counts as hung."""

    max_restarts: int = 3
    """How often a killed actor is started again within a minute before the run ends."""

    run_dir: str | None = None
    """Directory for the run's files; none writes no files."""

    report_interval_seconds: float = 1.0
    """Seconds between reports, which are what terminal, page and `metrics.jsonl` show; an evaluation reports too."""

    report_interval_steps: int | None = 5_000
    """Environment steps between reports, beside `report_interval_seconds`; none reports by time only."""

    checkpoint_interval_seconds: float = 60.0
    """Seconds between checkpoints of the learner, written where there is a run directory."""

    checkpoints_kept: int = 3
    """Newest checkpoints that stay in the run directory, beside the best one."""

    http: int | Literal["auto", "off"] = "auto"
    """Port of the live page and its endpoints: auto takes a free one, off serves nothing."""

    host: str = "127.0.0.1"
    """Address the page is served on; any other than a loopback address asks for the run's token."""

    def __post_init__(self) -> None:
        if self.run_dir is not None:
            object.__setattr__(self, "run_dir", os.fspath(self.run_dir))
        for name, option in option_help(TrainerConfig).items():
            object.__setattr__(self, name, coerce(name, option.type, getattr(self, name)))
        for name in ("env", "algo", "host"):
            if not getattr(self, name):
                raise ValueError(f"{name} must not be empty, got ''")
        self._check_ranges()

    def _check_ranges(self) -> None:
        for name in ("seed", "max_restarts", "eval_interval_seconds"):
            require_at_least(name, getattr(self, name), 0)
        for name in ("num_actors", "envs_per_actor", "total_steps", "eval_episodes", "target_eval_episodes"):
            require_at_least(name, getattr(self, name), 1)
        for name in (
            "torch_threads",
            "eval_interval_steps",
            "report_interval_steps",
            "eval_max_episode_steps",
            "checkpoints_kept",
        ):
            require_at_least(name, getattr(self, name), 1)
        for name in ("max_seconds", "burst_seconds", "step_timeout_seconds", "ready_timeout_seconds"):
            require_positive(name, getattr(self, name))
        for name in ("report_interval_seconds", "checkpoint_interval_seconds"):
            require_positive(name, getattr(self, name))
        if self.target_return is not None and self.eval_interval_steps is self.eval_interval_seconds is None:
            raise ValueError(
                "target_return must come with eval_interval_steps or eval_interval_seconds, got neither"
            )
        if isinstance(self.http, int) and not 1 <= self.http <= 65535:
            raise ValueError(f"http must be auto, off or a port from 1 to 65535, got {self.http}")

    @property
    def only_evaluation_stops(self) -> bool:
        """Whether `target_return` is the only rule that can end the run."""
        others = (self.total_steps, self.max_seconds, self.target_training_return)
        return self.target_return is not None and all(rule is None for rule in others)

    @property
    def actors(self) -> int:
        """`num_actors`, resolved: one for each core this process may use but one, and at least one."""
        if self.num_actors is not None:
            return self.num_actors
        return max(1, usable_cores() - 1)


def usable_cores() -> int:
    """How many cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
