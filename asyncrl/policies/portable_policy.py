"""Trained policy with its origin (algorithm, options, environment): it can be saved and can make its environment."""

from __future__ import annotations

import dataclasses
import errno
import math
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncrl.acting.agent_policies import make_policy, own_record
from asyncrl.acting.box import BoxPolicy, SquashedGaussianPolicy
from asyncrl.acting.critics import CriticLayout, Critics
from asyncrl.acting.images import network_text
from asyncrl.acting.modules import NetworkFactory
from asyncrl.acting.network import ActingNetwork
from asyncrl.acting.policies import QPolicy
from asyncrl.acting.recurrent import memory_of
from asyncrl.acting.sale import SaleNetwork
from asyncrl.acting.stochastic import StochasticPolicy
from asyncrl.acting.trained_policy import TrainedPolicy, of_each
from asyncrl.envs.checks import close_env, require_same_spaces, spec_of
from asyncrl.envs.factory_pickle import pack_network
from asyncrl.envs.rendering import build_rendering, with_frame_stack
from asyncrl.envs.source import EnvSource
from asyncrl.errors import AsyncRLError, ConfigurationError
from asyncrl.interfaces import AgentPolicy, BoxAction, DiscreteAction
from asyncrl.policies.policy_file import WITHOUT_PAYLOAD, PolicyFile, write_policy
from asyncrl.protocols import Algorithm, Policy
from asyncrl.show.metrics import EvaluationResult, Snapshot
from asyncrl.show.numbers import of_return
from asyncrl.storage.checkpoint_meta import CheckpointMeta, PolicyWeights

OF_CRITICS = ("values", "q_values")
"""Methods of a policy that need its critics, unless it acts by action values."""


class PortablePolicy(TrainedPolicy):
    """A `TrainedPolicy` with its origin: the type of `result.policy` and the return type of `asyncrl.load`.

        action, _ = policy.predict(obs)
        policy.save("cartpole.policy")

    `values`, `q_values`, `probabilities` and `log_prob` say what the algorithm has learned. Their `obs`, `state` and
    `episode_start` are those of `predict`. Values are discounted sums of the environment's rewards, whatever
    `reward_scale` or `normalize_rewards` made of these for learning; those of several policies, and of a file that
    does not say the factor, are in the units that were learned.

    Args:
        algorithm: makes the acting policy.
        weights: flat float32; not copied, must not be written afterwards.
        meta: algorithm, options, environment and training progress.
        source: the environment.
        critics: `[C, P]` float32, weights of the algorithm's critics (see `acting.critics`); None leaves them out.

    Attributes:
        algorithm, meta, source, critics: as given.
        of_several: whether it is one of several policies of a run, whose critics are not kept.

    Raises:
        ValueError: `weights` or `critics` have another shape than the algorithm's.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        weights: NDArray[np.float32],
        meta: CheckpointMeta,
        source: EnvSource,
        critics: NDArray[np.float32] | None = None,
    ) -> None:
        super().__init__(meta.spec, make_policy(algorithm, meta.spec), weights)
        for acting in getattr(self.policy, "parts", (self.policy,)):
            network = getattr(acting, "network", None)  # a user-defined policy may have none
            if isinstance(network, ActingNetwork):
                network.leave_torch()
        self.algorithm = algorithm
        self.meta = meta
        self.source = source
        self.critics = critics
        self.of_several = False
        if critics is not None and critics.shape != self.critic_layout.shape:
            raise ValueError(f"critics must have shape {self.critic_layout.shape}, got {critics.shape}")

    # --- what was learned --------------------------------------------------------------------------------------------

    def values(self, obs: Any, state: Any = None, episode_start: Any = None) -> Any:
        """Return the value of each observation: of a value network, or of the greedy action.

        Of DQN and its descendants the largest action value that no mask forbids. Of DDPG, TD3, SAC, CrossQ, TD3+BC and
        IQL the smallest of the critics' values of the greedy action, of TQC their mean. Of A2C, PPO and IMPALA the
        value network's. All but the first need the critics: see `save`. BC, MAPPO and MADDPG have none.

        Returns:
            float32 `[B]`, a scalar for one observation, a dict of them for observations by agent.

        Raises:
            ValueError: `obs` or `state` has another shape.
            ConfigurationError: the algorithm has no values, or this policy no critics.
        """
        return self._answer("values", self._values, obs, state, episode_start)

    def q_values(self, obs: Any, action: Any = None, state: Any = None, episode_start: Any = None) -> Any:
        """Return action values: of all discrete actions, or by each critic of one real-valued action.

        `action` has actions as the environment takes them, for critics of real-valued actions; None is the greedy ones.

        Returns:
            float32 `[B, A]` by action (DQN and its descendants), or `[B, C]` by critic (DDPG, TD3, SAC, TQC, CrossQ,
            TD3+BC, IQL; means of a distribution of returns). For one observation without the axis B, by agent in a
            dict.

        Raises:
            ValueError: `obs`, `action` or `state` has another shape, or actions are given that are not real-valued.
            ConfigurationError: the algorithm has no action values, or this policy no critics.
        """
        if action is not None and isinstance(self.policy, QPolicy):
            raise ValueError(f"action must be None, for {self.meta.algo} values all actions, got {action!r}")
        return self._answer("q_values", self._q_values, obs, state, episode_start, action)

    def probabilities(self, obs: Any, state: Any = None, episode_start: Any = None) -> Any:
        """Return the probabilities of discrete actions (A2C, PPO, IMPALA, BC...); those that a mask forbids have 0.

        Returns:
            float32 `[B, n]`, of the actions from `start` on; of a MultiDiscrete space a tuple of such arrays, one for
            each component in C order. For one observation without the axis B, by agent in a dict.

        Raises:
            ValueError: `obs` or `state` has another shape.
            ConfigurationError: the policy draws no discrete actions.
        """
        return self._answer("probabilities", self._probabilities, obs, state, episode_start)

    def log_prob(self, obs: Any, action: Any, state: Any = None, episode_start: Any = None) -> Any:
        """Return the log probability of an action, or its log density if it is real-valued (A2C, PPO, IMPALA, SAC...).

        A squashed Gaussian's density is that of the action scaled to -1..1, as in the losses. Other real-valued actions
        are drawn unbounded and clipped: of a clipped one it is the density at the bound.

        `action` has one action for each observation, as the environment takes them.

        Returns:
            float32 `[B]`, a scalar for one observation, a dict of them for observations by agent.

        Raises:
            ValueError: `obs`, `action` or `state` has another shape.
            ConfigurationError: the policy does not draw its actions.
        """
        if action is None:
            raise ValueError("action must be the action whose log probability is asked, got None")
        return self._answer("log_prob", self._log_prob, obs, state, episode_start, action)

    def _answer(
        self,
        name: str,
        compute: Callable[[NDArray[Any], NDArray[Any] | None], Any],
        obs: Any,
        state: Any,
        episode_start: Any,
        action: Any = None,
    ) -> Any:
        """Result of `compute(batch, action)` in the form in which the observations are given.

        `compute` returns one array, or a tuple of arrays, with the axis B; its actions are in storage form. `name` is
        the method that was called, whose arguments follow.
        """
        if self.spec.policies:
            return self._answer_by_policy(name, obs, state, episode_start, action)
        self._require(name)
        if self._by_agent(obs):
            batch, rows, starts = self._agents(obs, state, episode_start)
            acted = None if action is None else np.stack(of_each("action", action, obs))
            out = self._answer(name, compute, batch, rows, starts, acted)
            each = zip(*out, strict=True) if isinstance(out, tuple) else out
            return dict(zip(obs, each, strict=True))
        batch, single = self._batch(obs, state, episode_start)
        out = compute(batch, None if action is None else self._storage_form(action, batch.shape[0], single))
        if not single:
            return out
        return tuple(part[0] for part in out) if isinstance(out, tuple) else out[0]

    def _answer_by_policy(
        self, name: str, obs: Any, state: Any, episode_start: Any, action: Any
    ) -> dict[Any, Any]:
        """Result of a method of several policies, of observations by agent."""
        if not self._by_agent(obs):
            self._refuse_other_keys(obs)
            raise ValueError(
                f"obs must be given by agent where agents have several policies: {name}({{agent: obs}})"
            )
        found: dict[Any, Any] = {}
        for part, own in self.of_agents(obs):
            acted = {} if action is None else {"action": action}
            found |= getattr(part, name)(own, **acted, state=state, episode_start=episode_start)
        return {key: found[key] for key in obs}

    def _part(self, own: AgentPolicy, policy: Policy, weights: NDArray[np.float32]) -> PortablePolicy:
        """One of several policies, without its critics."""
        record = own_record(self.algorithm, own)
        options = {**self.meta.options, **{name: getattr(record, name) for name in own.options}}
        meta = dataclasses.replace(
            self.meta,
            spec=own.spec,
            options=options,
            return_mean=self.meta.policy_returns.get(own.name),
            policy_returns={},
            reward_scale=None,
        )
        part = PortablePolicy(record, weights, meta, self.source)
        part.of_several = True
        return part

    def _of_rewards(self, learned: NDArray[np.float32]) -> NDArray[np.float32]:
        """Values in the units of the environment's rewards."""
        return learned if self.meta.reward_scale is None else learned / np.float32(self.meta.reward_scale)

    def _values(self, obs: NDArray[Any], _: Any) -> NDArray[np.float32]:
        if isinstance(self.policy, QPolicy):
            return self._of_rewards(self.policy.values(obs))
        judged = self._judged(obs, None)
        averaged = self.critic_layout.outputs > 1  # TQC averages all atoms of all critics
        values: NDArray[np.float32] = judged.mean(axis=1) if averaged else judged.min(axis=1)
        return values

    def _q_values(self, obs: NDArray[Any], action: NDArray[Any] | None) -> NDArray[np.float32]:
        if isinstance(self.policy, QPolicy):
            return self._of_rewards(self.policy.q_values(obs))
        return self._judged(obs, action)

    def _judged(self, obs: NDArray[Any], action: NDArray[Any] | None) -> NDArray[np.float32]:
        """Values `[B, C]` by the critics, of states or of actions, None for the greedy ones."""
        policy: Any = self.policy
        if action is None and self.critic_layout.action is not None:
            action = policy.greedy(obs)
        memory = memory_of(policy)
        state = None if memory is None else memory.state
        return self._of_rewards(self._critics(policy.network.inputs_of(obs), action, state))

    def _probabilities(self, obs: NDArray[Any], _: Any) -> Any:
        assert isinstance(self.policy, StochasticPolicy)
        parts = self.policy.probabilities(obs)
        return parts[0] if isinstance(self.spec.action, DiscreteAction) else tuple(parts)

    def _log_prob(self, obs: NDArray[Any], action: NDArray[Any] | None) -> NDArray[np.float32]:
        assert isinstance(self.policy, StochasticPolicy | SquashedGaussianPolicy) and action is not None
        return self.policy.log_prob(obs, action)

    def _storage_form(self, action: Any, rows: int, single: bool) -> NDArray[Any]:
        """Actions `[B, d]` in storage form, from the environment's. Raises ValueError for what is no such action."""
        kind, array = self.spec.action, np.asarray(action)
        if array.dtype.kind not in "fiub":
            raise ValueError(f"action must hold real numbers, got {array.dtype}: {str(action)[:40]!r}")
        shape = getattr(kind, "space_shape", ()) or kind.shape
        if array.shape != (wanted := shape if single else (rows, *shape)):
            raise ValueError(f"action must have shape {wanted}, one for each observation, got {array.shape}")
        array = array.reshape(rows, math.prod(shape))
        if not np.isfinite(array).all():
            raise ValueError(f"action must be finite, got {array[~np.isfinite(array)][0]} among its values")
        if isinstance(kind, BoxAction):
            return array
        if (whole := np.rint(array)).tolist() != array.tolist():
            raise ValueError(f"action must be of whole numbers, got {action!r}")
        stored: NDArray[np.int64] = whole.astype(np.int64) - np.array(kind.start or 0, np.int64)
        if ((stored < 0) | (stored >= (kind.n if isinstance(kind, DiscreteAction) else kind.nvec))).any():
            raise ValueError(f"action must be an action of {self.spec.name}, got {action!r}")
        return stored

    @cached_property
    def critic_layout(self) -> Any:
        """`CriticLayout`; None of an algorithm whose critic does not judge a policy's own observation."""
        layout: CriticLayout | None = self.algorithm.critic_layout(self.meta.spec)  # type: ignore[attr-defined]
        return layout

    @cached_property
    def _critics(self) -> Critics:
        assert self.critics is not None
        return Critics(self.spec, self.critic_layout, self.critics)

    def _why_no_critics(self) -> str:
        if getattr(self.algorithm, "needs_agents", False):
            return "its critic needs what all agents observe"
        if isinstance(self.policy, BoxPolicy) and isinstance(self.policy.layout.network, SaleNetwork):
            return "its critics need embeddings of actions, which a policy's file does not hold"
        return "it learns no critics"

    def _require(self, name: str) -> None:
        """Raise ConfigurationError if the algorithm does not have this, or needs critics that are not there."""
        algo, offered = self.meta.algo, _offered(self.policy)
        without = isinstance(self.policy, StochasticPolicy | BoxPolicy) and self.critic_layout is None
        if without:
            offered = tuple(own for own in offered if own not in OF_CRITICS)
        if name not in offered:
            why = _why_not(self.policy, name)
            if without and name in OF_CRITICS:
                why = self._why_no_critics()
            raise ConfigurationError(
                f"{algo} has no {name} in {self.meta.env}: {why}",
                facts={f"{algo} has": ", ".join(("predict", *offered))},
                fix=f"use {' or '.join(offered or ('predict',))}",
            )
        if self.critics is None and name in OF_CRITICS and not isinstance(self.policy, QPolicy):
            kept = ("predict", *(own for own in offered if own not in OF_CRITICS))
            if self.of_several:
                raise ConfigurationError(
                    f"{name} of {algo} needs its critics, and those of several policies are not kept",
                    facts={"it has": ", ".join(kept)},
                    fix=f"use {' or '.join(kept)}",
                )
            raise ConfigurationError(
                f"{name} of {algo} needs its critics, and this policy was kept without them",
                facts={"it has": ", ".join(kept)},
                fix="load the directory of its run, or keep it with them: policy.save(path, critics=True), "
                "asyncrl export RUN --policy FILE --critics",
            )

    # --- files -------------------------------------------------------------------------------------------------------

    def save(self, path: str | Path, *, critics: bool = False) -> Path:
        """Write the policy to one file, which `asyncrl.load` reads, and return its path. An existing file is replaced.

        Folders of the path that do not exist are made.

        The file holds weights (with the statistics of normalised observations), options, the environment (its id with
        keyword arguments and wrappers, or its cloudpickled factory), and the cloudpickled factory of a user-defined
        network.

        Args:
            path: the file.
            critics: also keep the critics, from which `values` and `q_values` are computed; the file is then two to
                five times as long. DQN and its descendants need none.

        Raises:
            FactoryNotPicklable: the network's factory cannot be pickled (ASYNC001).
            ConfigurationError: the critics are wanted, and this policy has none.
            OSError: the file cannot be written.
        """
        contents, path = self.file(critics=critics), _in_its_folder(path)
        write_policy(path, contents)
        return path

    def file(self, *, critics: bool = False) -> PolicyFile:
        """Contents of the policy's file. Arguments and errors are those of `save`."""
        if critics and not self.spec.policies:
            self._require("values")
        elif critics:
            raise ConfigurationError(
                f"critics must be false where agents have several policies, got true for {self.meta.env}",
                fix="leave critics out: the file holds the acting networks of all policies",
            )
        meta = dataclasses.replace(self.meta, options={**self.meta.options, **final_rate(self.algorithm)})
        network: NetworkFactory | None = getattr(self.algorithm, "own_network", None)
        return PolicyFile(
            meta,
            self.weights,
            self.source.kind,
            None if self.source.kind in WITHOUT_PAYLOAD else self.source.payload,
            None if network is None else pack_network(network),
            self.critics if critics else None,
        )

    def export_onnx(self, path: str | Path) -> Path:
        """Write the greedy policy as an ONNX model, which runs without asyncrl (see `onnx_export`). Returns its path.

        Folders of the path that do not exist are made.

        Raises:
            ConfigurationError: onnx is not installed, or torch cannot export the user's policy or network.
            OSError: the file cannot be written.
        """
        from asyncrl.policies.onnx_export import export_onnx

        path = _in_its_folder(path)
        export_onnx(self, path, self.describe(), {"env": self.meta.env, "algo": self.meta.algo})
        return path

    def make_env(self, render_mode: str | None = None) -> Any:
        """Make the environment of training in this process.

        An environment given as a factory, or as a spec of another package, is unpickled now. That can run any code of
        the file's author: call this only for files that you trust.

        If the policy sees stacks of frames, the environment is wrapped in gymnasium's `FrameStackObservation`, so that
        `predict` accepts its observations. Of several agents it is the environment with PettingZoo's parallel API,
        unwrapped; `predict` makes stacks where it is called with a state. Of one agent with a Dict or Tuple space its
        observations are rows `[n]`, the parts one after the other; `predict` takes them as it takes Dicts.

        Args:
            render_mode: gymnasium's render mode, such as `"human"` or `"rgb_array"`.

        Raises:
            AsyncRLError: the environment cannot be built (ASYNC004, ASYNC006), or not with this render mode.
        """
        env = self._bare_env(render_mode)
        return env.parallel if self.spec.agents else with_frame_stack(env, self.policy.frame_stack)

    def built_env(self, render_mode: str | None = None) -> Any:
        """Make the environment to play in, as actors have it, several agents as `asyncrl.envs.agents.AgentsEnv`.

        Raises:
            AsyncRLError: as `make_env`.
            SpacesDoNotFit: its spaces or agents are not those of the policy (ASYNC005).
        """
        env = self._bare_env(render_mode)
        try:
            require_same_spaces(self.spec, spec_of(self.source.name, env))
        except AsyncRLError:
            close_env(env)
            raise
        return env if self.spec.agents else with_frame_stack(env, self.policy.frame_stack)

    def _bare_env(self, render_mode: str | None) -> Any:
        return self.source.build() if render_mode is None else build_rendering(self.source, render_mode)

    def describe(self, file: str = "") -> str:
        """One line: algorithm, environment, steps, evaluation; begins with `best` or `latest` if `file` is named so.

        The return is that of an episode; of several agents it is the sum of theirs.
        """
        meta = self.meta
        name = file.rpartition("/")[2]
        which = f"{name}, " if name in ("best", "latest") and "://" not in file else ""
        reached = ""
        if meta.return_mean is not None:
            summed = ", the sum of its agents" if len(meta.spec.agents) > 1 else ""
            reached = f", evaluated at {of_return(meta.return_mean)} in training{summed}"
        network = network_text(self.policy)
        seen = f", {network}" if network else ""
        return f"{which}{meta.algo} on {meta.env} after {meta.env_steps:,} steps{reached}{seen}"

    def __repr__(self) -> str:
        return f"<policy: {self.describe()}>"


def _in_its_folder(path: str | Path) -> Path:
    """Path of a file to write, whose folder is made. Raises OSError, also where the path is a directory."""
    file = Path(path).expanduser()
    if file.is_dir():
        raise IsADirectoryError(errno.EISDIR, "a policy is one file; name one in this directory", str(file))
    file.parent.mkdir(parents=True, exist_ok=True)
    return file


def final_rate(algorithm: Algorithm) -> dict[str, float]:
    """Option that stands for `exploration` where that is a function, which no file of a policy has: its last value."""
    exploration = getattr(algorithm, "exploration", None)
    return {"exploration_final": float(exploration(1.0))} if callable(exploration) else {}


def _offered(policy: Policy) -> tuple[str, ...]:
    """Methods beside `predict` that an algorithm with this policy has."""
    if isinstance(policy, SquashedGaussianPolicy):
        return (*OF_CRITICS, "log_prob")
    if isinstance(policy, QPolicy | BoxPolicy):
        return OF_CRITICS
    if isinstance(policy, StochasticPolicy):
        return ("values", *(() if policy.layout.gaussian else ("probabilities",)), "log_prob")
    return ()


def _why_not(policy: Policy, name: str) -> str:
    """Reason why an algorithm with this policy lacks a method."""
    if isinstance(policy, QPolicy):
        return "its policy takes the action of the largest value"
    if isinstance(policy, StochasticPolicy) and name == "q_values":
        return "it learns values of observations, not of actions"
    if isinstance(policy, StochasticPolicy | SquashedGaussianPolicy):
        return "its actions are real-valued, with densities in place of probabilities"
    if isinstance(policy, BoxPolicy):
        return "its action is a function of the observation"
    return f"its policy is a {type(policy).__name__}, not one of asyncrl"


@dataclasses.dataclass(frozen=True)
class BestPolicy:
    """Policy of the highest evaluation mean of a run; of equal ones the first.

    The best of many noisy means is biased upwards: evaluate it again (`asyncrl eval`) before you quote its return.

    Attributes:
        policy: the policy.
        evaluation: its evaluation, over `eval_episodes` episodes (`target_eval_episodes` if it was the last one).
    """

    policy: PortablePolicy
    evaluation: EvaluationResult

    @property
    def return_mean(self) -> float:
        """Mean return of the evaluation."""
        return self.evaluation.return_mean


@dataclasses.dataclass(frozen=True)
class PolicyOrigin:
    """Factory of the policies of one run.

    Attributes:
        algorithm, source: algorithm and environment of the run.
        meta: metadata at the run's start; a policy's metadata gets the counters of its weights.
    """

    algorithm: Algorithm
    source: EnvSource
    meta: CheckpointMeta

    def policy(
        self,
        weights: PolicyWeights,
        moment: EvaluationResult | Snapshot,
    ) -> PortablePolicy:
        """Make a policy with these weights, which are not copied.

        Args:
            weights: those that act, and the critics.
            moment: the evaluation of these weights, or the run's last snapshot if they were not evaluated.
        """
        meta = dataclasses.replace(
            self.meta,
            env_steps=moment.env_steps,
            updates=moment.updates,
            policy_version=moment.policy_version,
            train_seconds=moment.train_seconds,
            return_mean=moment.return_mean if isinstance(moment, EvaluationResult) else None,
            policy_returns=moment.policy_returns if isinstance(moment, EvaluationResult) else {},
            reward_scale=weights.reward_scale,
        )
        return PortablePolicy(self.algorithm, weights.acting, meta, self.source, weights.critics)
