"""Base update of the algorithms that learn from replay: gradient step, published weights, metrics and state."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from asyncrl.acting.layouts import NetworkLayout
from asyncrl.acting.network import NetworkInputs
from asyncrl.algorithms.normalization import DatasetStatistics, ObservationStatistics, warn_of_sizes
from asyncrl.algorithms.off_policy import OffPolicy
from asyncrl.algorithms.offline import Offline
from asyncrl.algorithms.reward_factor import RewardFactor
from asyncrl.algorithms.staging import StagedBatch
from asyncrl.algorithms.value_bounds import ValueBounds
from asyncrl.interfaces import RESET, Batch, EnvSpec, SequenceBatch, UpdateResult
from asyncrl.networks.flat_vector import FlatVector
from asyncrl.networks.graph import Graphs
from asyncrl.networks.matmul_precision import MatmulPrecision
from asyncrl.networks.parameters import HostCopy
from asyncrl.saved_state import Stateful


class ReplayUpdate(Stateful, ABC):
    """Learner on batches from replay. Implements `ReplayUpdater`.

    Learner thread only. The arrays of a batch are copied first. Everything after that runs on `device` without reading
    a value back; the only wait is for the new priorities. A nonfinite loss is not detected here, but shows in the
    priorities and in `metrics`.

    Args:
        config: hyper-parameters.
        spec: the environment.
        device: `"cpu"` or `"cuda"`.
        published: layout of the published network.

    Attributes:
        spec: the environment with stacked observations.
        reward_scale: factor on rewards, given or decided by the first rewards. In a group it stays 1 if none is given,
            because learners that share gradients need the same one.
        precision: context that sets the precision of matrix products.
        bounds: bounds of action values without an entropy bonus.
        statistics: observation statistics; None without normalisation.
        vector: parameters and gradient of all trained networks.
        kernels: whether kernels replace autograd. Autograd cannot use tensors of inference mode, but without it an
            update of 64x64 networks on 128 items is a tenth faster in this mode.
    """

    STATE: tuple[str, ...] = ("bounds", "statistics", "_updates", "_chosen_reward_scale")
    vector: FlatVector
    kernels = False
    _scaling: tuple[NDArray[np.float32], NDArray[np.float32]] | None = None
    """See `StagedBatch`."""
    _to_host: HostCopy
    _buffers: Any = None

    def __init__(
        self, config: OffPolicy | Offline, spec: EnvSpec, device: str, published: NetworkLayout
    ) -> None:
        self.config, self.spec, self.device = config, config.stacked_spec(spec), torch.device(device)
        self._published, self.weight_count = published, published.weight_count
        self.precision = MatmulPrecision(config.matmul_precision, self.device)
        self.bounds, self._updates, self._progress = ValueBounds(), 0, 0.0
        self.reward_scale = RewardFactor(config.given_reward_scale)
        self._as_graph = config.uses_graph(config.cuda_graph)
        self._graphs = Graphs(self.device)
        kind = DatasetStatistics if config.update_loop == "dataset" else ObservationStatistics
        self.statistics = kind(published) if config.normalize_observations else None

    def observe_dataset(
        self, obs: NDArray[Any], reward: NDArray[np.float32], flags: NDArray[np.uint8]
    ) -> None:
        """See `DatasetUpdater`: statistics of the observations, if they are normalised."""
        if isinstance(self.statistics, DatasetStatistics):
            self.statistics.take(obs[(flags & RESET) == 0], self.spec)

    @abstractmethod
    def _make_buffers(self, batch: Any) -> Any:
        """Make the buffers and passes of an update on B transitions; `batch` is not filled yet."""

    @abstractmethod
    def _update(self, buffers: Any) -> Tensor | None:
        """Make one gradient step on the staged batch; return the priorities `[B, 1]` if `prioritized`."""

    @abstractmethod
    def _last_update(self) -> tuple[float, Tensor | None, float] | None:
        """Loss, action values (None without any) and gradient norm of the last update; None before the first."""

    def _staged(self, size: int) -> Any:
        """Make an empty batch of `size` on the device."""
        return StagedBatch(
            size,
            self.spec,
            self.device,
            scaling=self._scaling,
            reward_scale=self.reward_scale,
            bounds=self.bounds,
            statistics=self.statistics,
        )

    def update(self, batch: Batch | SequenceBatch) -> UpdateResult:
        """Make one gradient step; the result holds new priorities if `prioritized`. Keeps no reference to `batch`."""
        if self._buffers is None or self._buffers.batch.size != batch.size:
            with torch.no_grad():
                self._buffers = self._make_buffers(self._staged(batch.size))
                self._graphs.clear()
        buffers = self._buffers
        if self._updates == 0 and self.statistics is None and getattr(batch, "source", None) is None:
            self._warn_of_sizes(batch.obs)
        if not self.reward_scale.decided and not self.vector.in_group:
            self.reward_scale.decide(batch.reward, self.config.n_step)
        with torch.inference_mode() if self.kernels else torch.no_grad():
            buffers.stage(batch)
            self._progress = batch.progress
            self.vector.begin_update()
            priorities = self._update(buffers)
            self._updates += 1
            return UpdateResult(None if priorities is None else buffers.batch.on_host(priorities))

    def _warn_of_sizes(self, obs: NDArray[Any]) -> None:
        """Warn if observations `[..., *obs_shape]` of the first batch are of an unusual size."""
        inputs, shape = NetworkInputs(self.spec), self.spec.observation_shape
        if not inputs.bytes:
            rows = math.prod(obs.shape[: obs.ndim - len(shape)])
            warn_of_sizes(inputs.rows(obs, np.empty((rows, self.spec.observation_values), np.float32)))

    @property
    def learned_reward_scale(self) -> float:
        """Factor from the environment's rewards to those whose values the networks learn."""
        return self.reward_scale.factor

    def begin_with_reward_scale(self, factor: float, env_steps: int) -> None:
        """Take over the factor of a policy whose values the run begins with, unless the user has given one."""
        del env_steps  # of `OnPolicyUpdate`
        self.reward_scale.chosen = factor

    @property
    def _chosen_reward_scale(self) -> float:
        return self.reward_scale.chosen

    @_chosen_reward_scale.setter
    def _chosen_reward_scale(self, factor: float) -> None:
        self.reward_scale.chosen = factor

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See `Stateful`; a state from before rewards could decide their factor has none."""
        super().load_state_dict({"chosen_reward_scale": 0.0, **state})

    def _run(self, function: Callable[[], None], variant: Hashable = None) -> None:
        """Run the part of an update that needs the device only; on a GPU as a CUDA graph, if `cuda_graph` allows it.

        Args:
            function: does the same operations on the same memory at every call with the same variant.
            variant: what else decides the operations.
        """
        if not self._as_graph or self.vector.on_step is not None:  # groups synchronise within an update
            function()
        else:
            self._graphs.run(variant, function)

    def write_weights(self, out: NDArray[np.float32]) -> None:
        """Copy the acting network and the observation statistics into `out` `[weight_count]`, in the policy's order."""
        if self.statistics is not None:
            self.statistics.write(out)
        self._write_network(out[: self._published.network_count])

    def _write_network(self, out: NDArray[np.float32]) -> None:
        self._to_host(out)

    @torch.no_grad()
    def begin_with(self, weights: NDArray[np.float32], env_steps: int) -> None:
        """Begin with a trained policy: copy its weights into the fresh acting network and that network's target.

        Critics, optimiser and counters are left at their initial values.

        Args:
            weights: flat `[weight_count]`, in the order that the policy reads.
            env_steps: environment steps that it was trained for; the observation statistics count as many.

        Raises:
            ValueError: this updater cannot start from a policy's weights.
        """
        flat = torch.from_numpy(np.array(weights, np.float32))
        if self.statistics is not None:
            self.statistics.begin_with(flat.numpy(), env_steps)
        self._begin_network(flat[: self._published.network_count])

    @abstractmethod
    def _begin_network(self, flat: Tensor) -> None:
        """Copy the published network `flat` into the acting network and its target."""

    @torch.no_grad()
    def metrics(self) -> Mapping[str, float]:
        """Loss, learning rate, action values and gradient norm (before clipping) of the last update.

        `train/q_mean` is the mean action value and `train/q_max` the largest absolute one, over all critics.
        `train/value_low` and `train/value_high` are the bounds of `value_bounds`. `train/reward_scale` is the factor on
        rewards where the first rewards decided one other than 1. Waits for the device. Before the first update, only
        the learning rate.
        """
        rate = self.config.learning_rate_at(max(self._updates - 1, 0), self._progress)
        last = self._last_update()
        if last is None:
            return {"train/learning_rate": rate}
        loss, q, norm = last
        values = {"train/learning_rate": rate, "train/loss": loss, "train/grad_norm": norm}
        values |= self.reward_scale.metrics()
        if q is None:
            return values
        extremes = {"train/q_mean": float(q.mean()), "train/q_max": float(q.abs().max())}
        return {**values, **extremes, **self.bounds.metrics(self._bounds_margin)}

    @torch.no_grad()
    def values_of(self, action: NDArray[Any]) -> NDArray[np.float32] | None:
        """Values of the last update's transitions, `[B]` in the unit of the environment's rewards, or None.

        Args:
            action: `[B, ...]`, the transitions' actions.
        """
        last = self._last_update()
        found = None if last is None or last[1] is None else self._of_actions(last[1], action)
        return None if found is None else (found.float() / self.reward_scale.factor).cpu().numpy()

    def _of_actions(self, q: Tensor, action: NDArray[Any]) -> Tensor | None:
        """Values `[B]` of `_last_update`, mean over critics; None of an algorithm whose values are of other rows."""
        return None

    @property
    def _bounds_margin(self) -> float:
        """Amount by which action values may exceed `bounds`."""
        return 0.0
