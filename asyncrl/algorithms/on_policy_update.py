"""Updater of all algorithms that learn from segments: an iteration, divided into passes and gradient steps.

The algorithm's record defines the computation before the first pass (`prepare`), the division of a pass into gradient
steps (`divide`), and the gradient of the loss at the networks' outputs (`gradients`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import asyncrl.algorithms.returns  # noqa: F401  (compiles or loads its kernel before a run)
from asyncrl.algorithms.actor_critic import VALUE, ActorCritic
from asyncrl.algorithms.normalization import RewardScale
from asyncrl.algorithms.reward_factor import RewardFactor
from asyncrl.algorithms.rollout import Part, PolicyRollout, RecurrentRollout, Rollout, RowBatch
from asyncrl.algorithms.segment_learning import SegmentLearning
from asyncrl.algorithms.segment_networks import SegmentNetworks
from asyncrl.algorithms.shared_trunk import SharedTrunkActorCritic
from asyncrl.interfaces import EnvSpec, Segment, ValuePairs
from asyncrl.networks.graph import Graphs
from asyncrl.saved_state import Stateful, restore, saved

MOST_PAIRS = 64
"""Most rows whose values are compared with their returns, at a report."""


class OnPolicyUpdate(Stateful):
    """Networks, optimiser and progress of an iteration. Implements `SegmentUpdater`.

    Learner thread only. The rows of a gradient step depend only on the seed, the number of the iteration and the number
    of the pass, so results do not depend on when `step` is called.

    Args:
        config: hyper-parameters.
        spec: the environment.
        device: `"cpu"` or `"cuda"`.
        seed: seed of the initial weights and of the order within passes.

    Attributes:
        nets: the networks, with their parameters and gradient in `vector`.
    """

    STATE = (
        "nets",
        "_rewards",
        "_learning_rate",
        "_seed",
        "_iterations",
        "_updates",
        "_samples",
        "_epoch",
        "_last_epoch",
        "_position",
        "_reusable",
        "_chosen_reward_scale",
        "_rewarded",
    )

    def __init__(self, config: SegmentLearning, spec: EnvSpec, device: str, seed: int) -> None:
        self.config = config
        self.nets = self._make_nets(config, spec, device, seed)
        self.vector, self.weight_count = self.nets.vector, self.nets.weight_count
        self._seed, self._iterations, self._updates, self._samples = seed, 0, 0, 0
        self._epoch, self._last_epoch, self._position, self._reusable = 0, 0, 0, 0
        self._parts: list[tuple[Part, Tensor]] = []
        self._rewards = RewardScale(config.discount)
        self._reward_factor, self._rewarded = RewardFactor(), False
        if config.normalize_rewards:
            self.vector.shared += (self._rewards.moments, self._rewards.sizes)
        self._rollout: Rollout | None = None
        self._batches: dict[int, RowBatch] = {}
        self._graphs = Graphs(self.nets.device)
        self._as_graph = config.static_steps and self.nets.device.type == "cuda"
        self._batch: RowBatch | None = None
        self._learning_rate = config.learning_rate_at(0.0)

    def _make_nets(self, config: Any, spec: EnvSpec, device: str, seed: int) -> SegmentNetworks:
        """Networks of an actor-critic; its record is an `OnPolicy`."""
        layout = config.layout(spec)
        shared = config.shared_trunk and SharedTrunkActorCritic.takes(layout)
        networks = SharedTrunkActorCritic if config.cell is not None or shared else ActorCritic
        return networks(config, spec, device, seed)

    def _make_rollout(self, streams: int, length: int) -> Rollout:
        """Buffers for the segments of an iteration."""
        assert isinstance(self.nets, ActorCritic)
        kind = PolicyRollout if self.config.cell is None else RecurrentRollout
        return kind(self.nets, streams, length, self.config.rollout_columns)

    @torch.no_grad()
    def begin(self, segments: Sequence[Segment], progress: float) -> None:
        """Copy the segments and prepare the passes over them.

        Args:
            segments: at least one, all of one shape; no reference to them is kept.
            progress: completed fraction of the run's steps, for schedules.
        """
        config, first = self.config, segments[0]
        rollout = self._rollout_of(len(segments) * first.num_envs, first.num_rows)
        rollout.stage(segments)
        if self._iterations == 0:
            self.nets.warn_of_sizes(first.obs, first.flags)
        for segment in (s for s in segments if s.fresh):
            self.nets.observe(segment.obs, segment.flags)
        rollout.rewarded = self._rewarded = self._rewarded or bool(rollout.reward.any())
        if config.normalize_rewards:
            self._rewards.observe(segments)
            rollout.reward[:] = self._rewards.scaled(rollout.reward)
        else:
            if not self._reward_factor.decided and not self.vector.in_group:
                self._reward_factor.decide(rollout.reward[rollout.weight > 0])
            rollout.reward *= np.float32(self._reward_factor.factor)
        rollout.progress, self._learning_rate = progress, config.learning_rate_at(progress)
        self._iterations += 1
        self._epoch, self._last_epoch = 0, config.value_passes + config.epochs
        self._reusable = config.reuse_epochs
        config.prepare(rollout)
        self._begin_pass(rollout)

    @property
    def learned_reward_scale(self) -> float:
        """Factor from the environment's rewards to those whose values the network learns; changes if normalised."""
        return 1.0 / self._rewards.divisor if self.config.normalize_rewards else self._reward_factor.factor

    def begin_with_reward_scale(self, factor: float, env_steps: int) -> None:
        """Take over the factor of a policy whose values the run begins with, if normalised as that of `env_steps`."""
        if self.config.normalize_rewards:
            self._rewards.begin_with(1.0 / factor, env_steps)
        else:
            self._reward_factor.chosen = factor

    @property
    def _chosen_reward_scale(self) -> float:
        return self._reward_factor.chosen

    @_chosen_reward_scale.setter
    def _chosen_reward_scale(self, factor: float) -> None:
        self._reward_factor.chosen = factor

    def _rollout_of(self, streams: int, length: int) -> Rollout:
        if self._rollout is None or self._rollout.shape != (streams, length):
            self._rollout = self._make_rollout(streams, length)
            self._batches = {}
            self._graphs.clear()
        return self._rollout

    def _begin_pass(self, rollout: Rollout) -> None:
        """Divide the rows into gradient steps, with a seed of this pass."""
        parts = self.config.divide(rollout, (self._seed, self._iterations, self._epoch))
        rows = torch.from_numpy(np.concatenate([part.rows for part in parts])).to(self.nets.device)
        self._parts = [*zip(parts, rows.split([part.rows.size for part in parts]), strict=True)]
        self._position = 0

    @torch.no_grad()
    def step(self) -> bool:
        """Make one gradient step; return whether the iteration has another one.

        A step without trained rows is left out, for Adam's momentum would move the weights; groups that synchronise
        within a step make it, with those of the others.

        Raises:
            RuntimeError: all steps of the iteration have been made, or `begin` was not called.
        """
        rollout = self._rollout
        if self._epoch >= self._last_epoch or rollout is None:
            raise RuntimeError("step needs an iteration that is not finished; call begin first")
        part, rows = self._parts[self._position]
        self.vector.begin_update()
        if not part.samples and self.vector.on_step is None:
            self._move_on(0, rollout)
            return self._goes_on()
        batch = self._batch_of(rollout, part.rows.size)
        if self._as_graph and self.vector.on_step is None:  # groups synchronise within a step
            self._run_graph(rollout, batch, part, rows)
            self._move_on(part.samples, rollout)
        else:
            batch.forward(rollout, part, rows)
            gradients = self.config.gradients(rollout, batch)
            moved = VALUE if self._epoch < self.config.value_passes else None
            if moved is not None:
                batch.backward_value(gradients)
            elif gradients is not None:
                batch.backward(gradients)
            if self.vector.begin_step(part.samples, gradients is None):
                self._epoch, self._reusable = self._last_epoch, 0
            else:
                self.nets.set_learning_rate(self._learning_rate)
                self.nets.apply(moved)
                self._move_on(part.samples, rollout)
        return self._goes_on()

    def _goes_on(self) -> bool:
        """Whether the iteration has another step; at its end the statistics of its observations are applied."""
        if self._epoch < self._last_epoch:
            return True
        self.nets.move_statistics()
        return False

    def _batch_of(self, rollout: Rollout, size: int) -> RowBatch:
        if size not in self._batches:
            self._batches[size] = rollout.minibatch(size)
        self._batch = self._batches[size]
        return self._batch

    def _run_graph(self, rollout: Rollout, batch: RowBatch, part: Part, rows: Tensor) -> None:
        """Make a gradient step as a CUDA graph, which reads the rows' indices from memory that stays the same."""
        batch.part = part
        batch.rows.copy_(rows)
        self.nets.set_learning_rate(self._learning_rate)
        self._graphs.run(batch.size, partial(self._compute, rollout, batch))

    def _compute(self, rollout: Rollout, batch: RowBatch) -> None:
        """Make a gradient step whose operations are the same for all rows."""
        batch.forward(rollout, batch.part, batch.rows)
        batch.backward(self.config.gradients(rollout, batch))
        self.nets.apply()

    def _move_on(self, samples: int, rollout: Rollout) -> None:
        """Move on to the next step or pass."""
        self._updates += 1
        self._samples += samples
        self._position += 1
        if self._position == len(self._parts):
            self._epoch += 1
            if self._epoch < self._last_epoch:
                self._begin_pass(rollout)

    @torch.no_grad()
    def reuse(self) -> bool:
        """Prepare another pass over the same rows, at most `reuse_epochs` times; return whether one is allowed."""
        if self._rollout is None or self._epoch < self._last_epoch or not self._reusable:
            return False
        self._rollout.renormalize()  # the statistics changed at the end of the last pass
        self._reusable -= 1
        self._last_epoch += 1
        self._begin_pass(self._rollout)
        return True

    @property
    def samples(self) -> int:
        """Samples trained on since the start; a row counts once per use."""
        return self._samples

    def batch(self) -> Mapping[str, NDArray[Any]]:
        """Rows of the present iteration as arrays on the host; empty before the first iteration."""
        return {} if self._rollout is None else self._rollout.arrays()

    def write_weights(self, out: NDArray[np.float32]) -> None:
        """Copy the acting weights into `out` `[weight_count]`."""
        self.nets.write_weights(out)

    @torch.no_grad()
    def critic_weights(self) -> NDArray[np.float32] | None:
        """Weights of the value network, a copy `[1, P]`; None without one that judges the policy's own observation."""
        weights = self.nets.critic_weights()
        return None if weights is None else weights.numpy()

    @torch.no_grad()
    def begin_with(self, weights: NDArray[np.float32], env_steps: int) -> None:
        """Begin with a trained policy's `weights` `[weight_count]` and its statistics of `env_steps` steps.

        The value network, optimiser and counters are left at their initial values.
        """
        self.nets.begin_with(torch.from_numpy(np.array(weights, np.float32)), env_steps)

    @torch.no_grad()
    def begin_with_critics(self, weights: NDArray[np.float32]) -> None:
        """Begin with the value network that `critic_weights` returned, which has seen rewards."""
        self.nets.load_critic(torch.from_numpy(weights))
        self._rewarded = True

    @torch.no_grad()
    def metrics(self) -> Mapping[str, float]:
        """Learning rate and scalars of the last gradient step; waits for the device."""
        values = {"train/learning_rate": self._learning_rate, **self._reward_factor.metrics()}
        if self._rollout is not None and self._batch is not None:
            values |= self.config.metrics(self._rollout, self._batch)
        norm = self.nets.grad_norm
        return values if norm is None else {**values, "train/grad_norm": float(norm)}

    @torch.no_grad()
    def value_pairs(self) -> ValuePairs | None:
        """Values of some rows of the present iteration, and their returns, which the values at its end complete.

        Both are in the unit of the environment's rewards.
        """
        if self._rollout is None or self._batch is None:
            return None
        found = self.config.values_and_returns(self._rollout, self._batch)
        if found is None:
            return None
        every = slice(None, None, max(1, -(-len(found[0]) // MOST_PAIRS)))
        values, returns = (some[every] / self.learned_reward_scale for some in found)
        return ValuePairs(tuple(values.tolist()), tuple(returns.tolist()))

    def state_dict(self) -> dict[str, Any]:
        """Networks, optimiser, statistics, counters and, within an iteration, its rollout, as copies on the host."""
        state = super().state_dict()
        if self._rollout is not None and (self._epoch < self._last_epoch or self._reusable):
            state["rollout"] = saved(self._rollout)
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See `Stateful`; a state from before rewards could decide their factor has none, and counts as rewarded."""
        own = {name: value for name, value in state.items() if name != "rollout"}
        super().load_state_dict({"chosen_reward_scale": 0.0, "rewarded": True, **own})
        if "rollout" not in state:
            return
        rollout = self._rollout_of(*state["rollout"]["shape"])
        restore(rollout, state["rollout"])
        rollout.rewarded = self._rewarded
        if self._epoch < self._last_epoch:
            position = self._position
            self._begin_pass(rollout)
            self._position = position
