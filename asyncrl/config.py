"""Options of a run except its algorithm's, as a frozen record.

The docstring below a field is its help on the command line and its comment in `config.toml`. The algorithm's options
are in its own record (`asyncrl.algorithms`). The two records together reproduce a run.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from asyncrl.option_docs import documented
from asyncrl.options import coerce, option_help, require_at_least, require_fraction, require_positive

EPISODE_WINDOW = 100
"""Number of training episodes in the mean `rollout/ep_rew_mean`, as in Stable-Baselines3."""


@documented
@dataclass(frozen=True, kw_only=True)
class TrainerConfig:
    """Options of a run except its algorithm's."""

    env: str
    """Gymnasium id of the environment, or the name of its factory."""

    env_file: str | None = None
    """File with the pickled factory or spec of `env`, kept in the run directory; loading it runs the code in it."""

    env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of the environment's constructor, such as gravity:9; values are Python literals."""

    wrappers: tuple[str, ...] = ()
    """Environment wrappers module:Name, innermost first; each takes an environment and returns one."""

    algo: str
    """Name of the algorithm."""

    seed: int = 0
    """Random seed; actors, environments and the learner use generators spawned from it."""

    num_actors: int | None = None
    """Number of actor processes; none means one less than the number of cores, and at least one."""

    envs_per_actor: int = 16
    """Environments per actor, which share one forward pass of the policy; a factory that returns a vector
    environment sets this number."""

    total_steps: int | None = None
    """Stop after this many environment steps of all actors (rounded up to whole batches)."""

    max_seconds: float | None = None
    """Stop after this many seconds of training; evaluation pauses do not count."""

    target_return: float | None = None
    """Stop when the mean return of a greedy evaluation over `target_eval_episodes` episodes reaches this."""

    target_training_return: float | None = None
    """Stop when the mean return of the last 100 training episodes over all actors reaches this."""

    eval_interval_steps: int | None = 25_000
    """Environment steps between greedy evaluations; none evaluates at the end only."""

    eval_episodes: int = 10
    """Episodes per regular evaluation."""

    target_eval_episodes: int = 100
    """Episodes of the evaluation that confirms `target_return`; training pauses during it."""

    eval_max_episode_steps: int | None = None
    """Maximum steps of an evaluation episode; none takes the environment's own limit, or 27000 without one."""

    groups: int = 1
    """Number of groups on this machine, each with its own actors and learner; under torchrun every rank is one."""

    fusion: Literal["gradients", "average", "async"] = "average"
    """Fusion of the groups: gradients at every update, mean weights in the background, or deltas without a barrier."""

    fusion_interval: int = 32
    """Updates between two fusions of weights (average and async)."""

    max_fusion_staleness: int = 8
    """Maximum staleness of a group's delta, in fusions (async); older deltas are dropped."""

    fusion_dtype: Literal["float32", "bfloat16", "int8", "topk"] = "float32"
    """Encoding of the messages between groups; all but float32 use error feedback."""

    fusion_learning_rate: float = 1.0
    """Outer learning rate, above 0 (average); DiLoCo uses 0.7."""

    fusion_momentum: float = 0.0
    """Outer Nesterov momentum, from 0 to 1 (average); 0 is the plain mean, DiLoCo uses 0.9."""

    fusion_moments: bool = False
    """Average the optimiser's moments with the weights (average); messages are three times as long."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device of the learner's network; auto takes a GPU if there is one and the network is large."""

    torch_threads: int = 1
    """Torch threads of the learner; more than one is very slow while the actors keep all cores busy."""

    burst_seconds: float = 0.01
    """Seconds of updates that the learner's thread makes before it returns to the event loop."""

    step_timeout_seconds: float = 60.0
    """Time limit of one environment step, in seconds; a longer one counts as hung."""

    ready_timeout_seconds: float = 60.0
    """Time limit for an actor to build and first reset its environments, in seconds; a slower one counts as hung."""

    max_restarts: int = 3
    """Maximum restarts of an actor within a minute; the next death ends the run."""

    max_actor_bytes: int | None = None
    """Maximum private memory of an actor in bytes; a larger one is killed and restarted; none sets no limit."""

    run_dir: str | None = None
    """Directory of the run's files; none writes no files. By default a command creates one in `runs/`."""

    init_from: str | None = None
    """Begin with the policy of this run or file; optimiser, critics and counters begin anew."""

    report_interval_seconds: float = 1.0
    """Maximum seconds between reports to the terminal, the page and `metrics.jsonl`; each evaluation reports too."""

    report_interval_steps: int | None = 5_000
    """Environment steps between reports, in addition to `report_interval_seconds`; none reports by time only."""

    checkpoint_interval_seconds: float = 60.0
    """Seconds between checkpoints of the learner, which need a run directory."""

    checkpoints_kept: int = 3
    """Newest checkpoints kept in the run directory, beside the best one."""

    save_replay_buffer: bool = False
    """Save the replay in checkpoints, so that a resumed run need not refill it; needs twice its size on disk."""

    http: int | Literal["auto", "off"] = "auto"
    """Port of the live page and its endpoints; auto takes a free one, off serves nothing."""

    host: str = "127.0.0.1"
    """Address to serve the page on; on any other than loopback every request needs the run's token."""

    def __post_init__(self) -> None:
        for name in ("run_dir", "init_from"):
            if (path := getattr(self, name)) is not None:
                object.__setattr__(self, name, os.path.expanduser(os.fspath(path)))
        for name, option in option_help(TrainerConfig).items():
            object.__setattr__(self, name, coerce(name, option.type, getattr(self, name)))
        for name in ("env", "algo", "host"):
            if not getattr(self, name):
                raise ValueError(f"{name} must not be empty, got ''")
        self._check_ranges()

    def _check_ranges(self) -> None:
        for name in ("seed", "max_restarts"):
            require_at_least(name, getattr(self, name), 0)
        for name in ("num_actors", "envs_per_actor", "total_steps", "eval_episodes", "target_eval_episodes"):
            require_at_least(name, getattr(self, name), 1)
        for name in ("groups", "fusion_interval"):
            require_at_least(name, getattr(self, name), 1)
        require_at_least("max_fusion_staleness", self.max_fusion_staleness, 0)
        require_positive("fusion_learning_rate", self.fusion_learning_rate)
        require_fraction("fusion_momentum", self.fusion_momentum)
        if self.fusion_moments and self.fusion != "average":
            raise ValueError(f"fusion_moments must be false with fusion={self.fusion!r}, got True")
        for name in (
            "torch_threads",
            "eval_interval_steps",
            "report_interval_steps",
            "eval_max_episode_steps",
            "checkpoints_kept",
            "max_actor_bytes",
        ):
            require_at_least(name, getattr(self, name), 1)
        for name in ("max_seconds", "burst_seconds", "step_timeout_seconds", "ready_timeout_seconds"):
            require_positive(name, getattr(self, name))
        for name in ("report_interval_seconds", "checkpoint_interval_seconds"):
            require_positive(name, getattr(self, name))
        if self.target_return is not None and self.eval_interval_steps is None:
            raise ValueError("target_return must come with eval_interval_steps, got none")
        if isinstance(self.http, int) and not 1 <= self.http <= 65535:
            raise ValueError(f"http must be auto, off or a port from 1 to 65535, got {self.http}")

    @property
    def only_evaluation_stops(self) -> bool:
        """Whether `target_return` is the only stop condition of the run."""
        others = (self.total_steps, self.max_seconds, self.target_training_return)
        return self.target_return is not None and all(rule is None for rule in others)

    @property
    def actors(self) -> int:
        """`num_actors`, or if None one less than the cores that this process may use, and at least one."""
        if self.num_actors is not None:
            return self.num_actors
        return max(1, usable_cores() - 1)


def usable_cores() -> int:
    """Number of cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
