"""Trained policy with its origin (algorithm, options, environment): it can be saved and can make its environment."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncrl.acting.images import network_text
from asyncrl.acting.modules import NetworkFactory
from asyncrl.acting.network import ActingNetwork
from asyncrl.acting.trained_policy import TrainedPolicy
from asyncrl.envs.factory_pickle import pack_network
from asyncrl.envs.rendering import build_rendering, with_frame_stack
from asyncrl.envs.source import EnvSource
from asyncrl.policies.policy_file import PolicyFile, write_policy
from asyncrl.protocols import Algorithm
from asyncrl.show.metrics import EvaluationResult, Snapshot
from asyncrl.storage.checkpoint_meta import CheckpointMeta


class PortablePolicy(TrainedPolicy):
    """A `TrainedPolicy` with its origin: the type of `result.policy` and the return type of `asyncrl.load`.

        action, _ = policy.predict(obs)
        policy.save("cartpole.policy")

    Args:
        algorithm: makes the acting policy.
        weights: flat float32; not copied, must not be written afterwards.
        meta: algorithm, options, environment and training progress.
        source: the environment.

    Attributes:
        algorithm, meta, source: as given.

    Raises:
        ValueError: the length of `weights` is not that of the algorithm's policy.
    """

    def __init__(
        self, algorithm: Algorithm, weights: NDArray[np.float32], meta: CheckpointMeta, source: EnvSource
    ) -> None:
        super().__init__(meta.spec, algorithm.make_policy(meta.spec), weights)
        network = getattr(self.policy, "network", None)  # a user-defined policy may have none
        if isinstance(network, ActingNetwork):
            network.leave_torch()
        self.algorithm = algorithm
        self.meta = meta
        self.source = source

    def save(self, path: str | Path) -> Path:
        """Write the policy to one file, which `asyncrl.load` reads, and return its path. An existing file is replaced.

        The file holds weights (with the statistics of normalised observations), options, the environment (its id with
        keyword arguments and wrappers, or its cloudpickled factory), and the cloudpickled factory of a user-defined
        network.

        Raises:
            FactoryNotPicklable: the network's factory cannot be pickled (ASYNC001).
            OSError: the file cannot be written.
        """
        path = Path(path).expanduser()
        meta = self.meta
        exploration = getattr(self.algorithm, "exploration", None)
        if callable(exploration):  # the file cannot hold a function: save its final value
            meta = dataclasses.replace(meta, options={**meta.options, "exploration_final": exploration(1.0)})
        network: NetworkFactory | None = getattr(self.algorithm, "own_network", None)
        file = PolicyFile(
            meta,
            self.weights,
            self.source.kind,
            None if self.source.kind == "id" else self.source.payload,
            None if network is None else pack_network(network),
        )
        write_policy(path, file)
        return path

    def export_onnx(self, path: str | Path) -> Path:
        """Write the greedy policy as an ONNX model, which runs without asyncrl (see `onnx_export`). Returns its path.

        Raises:
            ConfigurationError: onnx is not installed, or torch cannot export the user's policy or network.
            OSError: the file cannot be written.
        """
        from asyncrl.policies.onnx_export import export_onnx

        path = Path(path).expanduser()
        export_onnx(self, path, self.describe(), {"env": self.meta.env, "algo": self.meta.algo})
        return path

    def make_env(self, render_mode: str | None = None) -> Any:
        """Make the environment of training in this process.

        An environment given as a factory, or as a spec of another package, is unpickled now. That can run any code of
        the file's author: call this only for files that you trust.

        If the policy sees stacks of frames, the environment is wrapped in gymnasium's `FrameStackObservation`, so that
        `predict` accepts its observations. Of several agents it is the environment with PettingZoo's parallel API,
        unwrapped; `predict` makes stacks where it is called with a state.

        Args:
            render_mode: gymnasium's render mode, such as `"human"` or `"rgb_array"`.

        Raises:
            AsyncRLError: the environment cannot be built (ASYNC004, ASYNC006), or not with this render mode.
        """
        env = self.built_env(render_mode)
        return env.parallel if self.spec.agents else env

    def built_env(self, render_mode: str | None = None) -> Any:
        """Make the environment as actors have it, several agents as arrays (`asyncrl.envs.agents.AgentsEnv`)."""
        env = self.source.build() if render_mode is None else build_rendering(self.source, render_mode)
        return env if self.spec.agents else with_frame_stack(env, self.policy.frame_stack)

    def describe(self, path: Path | None = None) -> str:
        """One line: algorithm, environment, steps, evaluation; begins with `best` or `latest` if `path` is named so."""
        meta = self.meta
        which = f"{path.name}, " if path is not None and path.name in ("best", "latest") else ""
        reached = "" if meta.return_mean is None else f", evaluated at {meta.return_mean:.1f} in training"
        network = network_text(self.policy)
        seen = f", {network}" if network else ""
        return f"{which}{meta.algo} on {meta.env} after {meta.env_steps:,} steps{reached}{seen}"

    def __repr__(self) -> str:
        return f"<policy: {self.describe()}>"


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

    def policy(self, weights: NDArray[np.float32], moment: EvaluationResult | Snapshot) -> PortablePolicy:
        """Make a policy with these weights.

        Args:
            weights: flat float32, not copied.
            moment: the evaluation of these weights, or the run's last snapshot if they were not evaluated.
        """
        meta = dataclasses.replace(
            self.meta,
            env_steps=moment.env_steps,
            updates=moment.updates,
            policy_version=moment.policy_version,
            train_seconds=moment.train_seconds,
            return_mean=moment.return_mean if isinstance(moment, EvaluationResult) else None,
        )
        return PortablePolicy(self.algorithm, weights, meta, self.source)
