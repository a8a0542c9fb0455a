"""Options of a run except its algorithm's, as a frozen record.

The docstring below a field is its help on the command line and its comment in `config.toml`. The algorithm's options
are in its own record (`asyncrl.algorithms`). The two records together reproduce a run.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from asyncrl.options import (
    Count,
    HttpAddress,
    NotNegative,
    Positive,
    Range,
    Text,
    check_options,
    documented,
)

EPISODE_WINDOW = 100
"""Number of training episodes in the mean `rollout/ep_rew_mean`, as in Stable-Baselines3."""
TARGET_EPISODES = 100
"""Episodes that confirm a target, and of the final evaluation, unless the user says something else."""
ENVIRONMENTS = 16
"""Environments of all actors together, unless the user says how many an actor has.

The number does not grow with the cores, for what a step teaches depends on it: a batch of PPO has at least 32 steps of
every environment, and with one update per step replay makes as many updates between two steps of an environment as
there are environments (docs/defaults-study.md).
"""
OF_AGENTS = ("agent_id", "pad_spaces", "policies")
"""Options that say how the agents of an environment see and act."""


@documented
@dataclass(frozen=True, kw_only=True)
class TrainerConfig:
    """Options of a run except its algorithm's."""

    env: Text
    """Gymnasium id of the environment, or the name of its factory."""

    env_file: Text | None = None
    """File with the pickled factory or spec of `env`, kept in the run directory; loading it runs the code in it."""

    env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of the environment's constructor, such as gravity:9; values are Python literals."""

    wrappers: tuple[str, ...] = ()
    """Environment wrappers module:Name, innermost first; each takes an environment and returns one."""

    agent_id: bool = False
    """Append the agent's index to its observation, one-hot, where several agents share a policy."""

    pad_spaces: bool = False
    """Pad vectors and discrete actions where they differ among the agents that share a policy."""

    policies: Mapping[str, str] = field(default_factory=dict)
    """Several policies of the agents, name:pattern; agents whose whole name matches the pattern share the policy."""

    policy_options: Mapping[str, Any] = field(default_factory=dict)
    """Options of the algorithm for single policies, name.option:value, in Python {name: {option: value}}."""

    self_play: Literal["none", "newest", "uniform", "prioritized"] = "none"
    """Draw of past versions of the policy as opponents: the newest, any, or mostly those it loses to."""

    self_play_fraction: Annotated[float, Range(above=0, at_most=1)] = 0.5
    """Fraction of the environments in which one agent learns against a past version, which acts for the others."""

    self_play_interval: Count = 1000
    """Updates between two versions that are kept as opponents."""

    self_play_versions: Count = 20
    """Versions kept as opponents; the oldest is dropped."""

    algo: Text
    """Name of the algorithm."""

    seed: NotNegative = 0
    """Random seed; actors, environments and the learner use generators spawned from it."""

    num_actors: Count | None = None
    """Number of actor processes; none means one less than the number of cores, and at least one."""

    envs_per_actor: Count | None = None
    """Environments per actor, which share one forward pass of the policy; none: about 16 of all actors together, at
    least one each. A factory that returns a vector environment sets this number."""

    dataset: Text | None = None
    """Minari dataset to learn from alone, without actors (bc, td3bc, iql): its folder; a step is then an update."""

    demonstrations: Text | None = None
    """Minari dataset whose steps are a share of every batch, beside those of the actors: its folder."""

    demonstration_fraction: Annotated[float, Range(above=0, below=1)] = 0.5
    """Share of a batch that is drawn from `demonstrations`; RLPD takes half."""

    total_steps: Count | None = None
    """Stop after this many environment steps of all actors (rounded up to whole batches); none sets no limit."""

    max_seconds: Positive | None = None
    """Stop after this many seconds of training; evaluation pauses do not count."""

    target_return: float | None = None
    """Stop when the mean return of an evaluation over `target_eval_episodes` episodes reaches this."""

    target_training_return: float | None = None
    """Stop when the mean return of the last 100 training episodes over all actors reaches this."""

    eval_interval_steps: Count | None = 25_000
    """Environment steps between evaluations; none evaluates at the end only."""

    eval_episodes: Count = 10
    """Episodes per regular evaluation."""

    target_eval_episodes: Count | None = TARGET_EPISODES
    """Episodes of the evaluation that confirms `target_return`, while training pauses, and of the final one. None
    means 100, or `eval_episodes` for the final one without a target; it is set where `eval_episodes` alone is given."""

    eval_env: Text | None = None
    """Environment of evaluations, an id or the name of a factory; none takes that of training."""

    eval_env_file: Text | None = None
    """File with the pickled factory or spec of `eval_env`, as `env_file`."""

    eval_env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of the constructor in evaluations; without `eval_env` they are added to `env_kwargs`."""

    eval_levels: Mapping[str, Any] = field(default_factory=dict)
    """Levels of evaluations, name:{key:value} with keyword arguments of each; the evaluation is the mean over them."""

    eval_deterministic: bool = True
    """Greedy actions in evaluations; otherwise actions are drawn as at the end of training."""

    eval_film: bool = False
    """Film the first episode of the newest evaluation, in a process of its own; needs imageio-ffmpeg."""

    eval_max_episode_steps: Count | None = None
    """Maximum steps of an evaluation episode; none takes the environment's own limit, or 27000 without one."""

    groups: Count = 1
    """Number of groups on this machine, each with its own actors and learner; under torchrun every rank is one."""

    fusion: Literal["gradients", "average", "async"] = "average"
    """Fusion of the groups: gradients at every update, mean weights in the background, or deltas without a barrier."""

    fusion_interval: Count = 32
    """Updates between two fusions of weights (average and async)."""

    max_fusion_staleness: NotNegative = 8
    """Maximum staleness of a group's delta, in fusions (async); older deltas are dropped."""

    fusion_dtype: Literal["float32", "bfloat16", "int8", "topk"] = "float32"
    """Encoding of the messages between groups; all but float32 use error feedback."""

    fusion_learning_rate: Positive = 1.0
    """Outer learning rate (average); DiLoCo uses 0.7."""

    fusion_momentum: Annotated[float, Range(at_least=0, below=1)] = 0.0
    """Outer Nesterov momentum (average); 0 is the plain mean, DiLoCo uses 0.9."""

    fusion_moments: bool = False
    """Average the optimiser's moments with the weights (average); messages are three times as long."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device of the learner's network; auto takes a GPU if there is one and the network is large."""

    torch_threads: Annotated[int, Range(at_least=1, at_most=1024)] = 1
    """Torch threads of the learner; more than one is very slow while the actors keep all cores busy."""

    burst_seconds: Positive = 0.01
    """Seconds of updates that the learner's thread makes before it returns to the event loop."""

    step_timeout_seconds: Positive = 60.0
    """Time limit of one environment step, or of a reset after the first, in seconds; a longer one counts as hung."""

    ready_timeout_seconds: Positive = 60.0
    """Time limit for an actor to build and first reset its environments, in seconds; a slower one counts as hung."""

    max_restarts: NotNegative = 3
    """Maximum restarts of an actor within a minute; the next death ends the run."""

    max_actor_bytes: Count | None = None
    """Maximum private memory of an actor in bytes; a larger one is killed and restarted; none sets no limit."""

    run_dir: Text | None = None
    """Directory of the run's files; none writes no files. By default a command creates one in `runs/`."""

    init_from: Text | None = None
    """Begin with the policy of this run, file or hf:// address, and critics of the same algorithm; the rest is new."""

    report_interval_seconds: Positive = 1.0
    """Maximum seconds between reports to the terminal, the page and `metrics.jsonl`; each evaluation reports too."""

    report_interval_steps: Count | None = 5_000
    """Environment steps between reports, in addition to `report_interval_seconds`; none reports by time only."""

    checkpoint_interval_seconds: Positive = 60.0
    """Seconds between checkpoints of the learner, which need a run directory."""

    checkpoints_kept: Count = 3
    """Newest checkpoints kept in the run directory, beside the best one."""

    save_replay_buffer: bool = False
    """Save the replay in checkpoints, so that a resumed run need not refill it; needs twice its size on disk."""

    http: Annotated[
        int | Literal["auto", "off"], Range(at_least=1, at_most=65535, noun="auto, off or a port")
    ] = "auto"
    """Port of the live page and its endpoints; auto takes a free one, off serves nothing."""

    host: Text = "127.0.0.1"
    """Address to serve the page on; on any other than loopback every request needs the run's token."""

    on_end: HttpAddress | None = None
    """Webhook for the summary of the ended run; it gets JSON by POST, also after a failure."""

    def __post_init__(self) -> None:
        for name in ("run_dir", "init_from", "dataset", "demonstrations"):
            if (path := getattr(self, name)) is not None:
                object.__setattr__(self, name, _path(name, path))
        check_options(self)
        for name, unused in (("learning_rate", 1.0), ("momentum", 0.0), ("moments", False)):
            if self.fusion != "average" and (value := getattr(self, f"fusion_{name}")) != unused:
                raise ValueError(f"fusion_{name} must be {unused} with fusion={self.fusion!r}, got {value!r}")
        for name in ("dataset", "demonstrations"):
            if getattr(self, name) is not None and self.groups > 1:
                raise ValueError(
                    f"{name} must be none with groups={self.groups}, got {getattr(self, name)!r}"
                )
        for name, pattern in self.policies.items():
            _check_pattern(name, pattern)
        for name, kwargs in self.eval_levels.items():
            if not isinstance(kwargs, Mapping):
                raise ValueError(f"eval_levels must have keyword arguments for {name}, got {kwargs!r}")
        if self.target_return is not None and self.eval_interval_steps is None:
            raise ValueError("target_return must come with eval_interval_steps, got none")

    @property
    def of_agents(self) -> dict[str, Any]:
        """Options that say how agents see and act, for `EnvSource.changed`."""
        return {name: getattr(self, name) for name in OF_AGENTS}

    @property
    def only_evaluation_stops(self) -> bool:
        """Whether `target_return` is the only stop condition of the run."""
        others = (self.total_steps, self.max_seconds, self.target_training_return)
        return self.target_return is not None and all(rule is None for rule in others)

    @property
    def fuses_gradients(self) -> bool:
        """Whether the learners of several groups make the same gradient steps."""
        return self.fusion == "gradients" and self.groups > 1

    @property
    def confirming_episodes(self) -> int:
        """Episodes of an evaluation that confirms `target_return`."""
        return self.target_eval_episodes or TARGET_EPISODES

    @property
    def final_episodes(self) -> int:
        """Episodes of the final evaluation."""
        alone = self.target_eval_episodes is None and self.target_return is None
        return self.eval_episodes if alone else self.confirming_episodes

    @property
    def actors(self) -> int:
        """`num_actors`, or if None one less than the cores that this process may use, and at least one.

        A run on a dataset has none.
        """
        if self.dataset is not None:
            return 0
        if self.num_actors is not None:
            return self.num_actors
        return max(1, usable_cores() - 1)

    @property
    def envs(self) -> int:
        """`envs_per_actor`, or if None as many as make about `ENVIRONMENTS` with all actors, and at least one.

        With self-play at least two, so that `self_play_fraction` can be a half.
        """
        least = 1 if self.self_play == "none" else 2
        return self.envs_per_actor or max(least, round(ENVIRONMENTS / max(1, self.actors)))


def with_final_episodes(given: Mapping[str, Any], below: Mapping[str, Any]) -> dict[str, Any]:
    """Options `given` by a user, with `target_eval_episodes` none where they have `eval_episodes` alone.

    Args:
        given: options of the run by name.
        below: options that they override; a number of their own for `target_eval_episodes` stays.
    """
    own = below.get("target_eval_episodes", TARGET_EPISODES) != TARGET_EPISODES
    if "eval_episodes" not in given or own:
        return dict(given)
    return {"target_eval_episodes": None, **given}


def _path(name: str, path: str | os.PathLike[str]) -> str:
    """Text of a path, with the home directory in place of `~`. Raises ValueError for what is none, such as a policy."""
    try:
        return os.path.expanduser(os.fspath(path))
    except TypeError:
        policy = path if hasattr(path, "save") else getattr(path, "policy", None)  # of a result
        fix = ""
        if name == "init_from" and hasattr(policy, "save"):
            kept = "" if getattr(policy, "critics", None) is None else ", critics=True"
            fix = f"; write {name}=policy.save('begin.policy'{kept}), which returns its path"
        raise ValueError(f"{name} must be a path, got {path!r:.100}{fix}") from None


def _check_pattern(name: str, pattern: Any) -> None:
    """Raise ValueError unless `pattern` is a regular expression."""
    try:
        re.compile(pattern)
    except (TypeError, re.error) as error:
        raise ValueError(
            f"policies must have a regular expression for {name}, such as 'agent_.*', got {pattern!r}: {error}"
        ) from None


def usable_cores() -> int:
    """Number of cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
