"""Rows of one on-policy iteration in flat arrays, and minibatches of them: the rows of one gradient step.

The arrays hold S = K E streams (K segments of E environments) of T rows each, stream-major: N = S T rows. The S
observations that follow the segments' last rows come after them and are used to bootstrap. The first of these, row N,
also serves as padding: its columns are zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from asyncrl.acting.network import OBSERVATION_CLIP
from asyncrl.algorithms.actor_critic import ActorCritic, ActorCriticPass, NetworksPass
from asyncrl.algorithms.on_policy_kernel import LossKernel, Outputs
from asyncrl.algorithms.returns import standardised
from asyncrl.algorithms.segment_networks import SegmentNetworks
from asyncrl.algorithms.shared_trunk import RecurrentPass
from asyncrl.envs.observations import FORBIDDEN
from asyncrl.interfaces import RESET, UNTRAINED, Segment
from asyncrl.networks.distributions import log_tanh_slope
from asyncrl.networks.recurrent import cut_pieces

WEIGHT = 5
"""Index of a row's weight among the columns of a `Minibatch`."""
CHUNK = 2048
"""Maximum rows of one evaluation pass."""


class Part(NamedTuple):
    """Rows of one gradient step.

    Attributes:
        rows: `[R]` int64, indices of rows of a rollout.
        trained: those of the R rows that are trained on.
        samples: number of trained rows.
    """

    rows: NDArray[np.int64]
    trained: slice | NDArray[np.int64]
    samples: int


class Rollout:
    """Buffers for segments of one shape; filled once per iteration.

    Args:
        nets: networks that read these buffers.
        streams: S.
        length: T.
        columns: names of the values that an algorithm computes for every row before the first pass.

    Attributes:
        x: `[N + S, inputs]` on the device, normalised observations; bytes stay bytes, see `fill_inputs`.
        action: `[N + S, ...]` on the device, arguments of the distribution: int64 choices, float32 actions, or latents
            of squashed actions. Zeros from row N on.
        mask: `[N + S, outputs]` bool on the device, allowed choices; None without action masks.
        columns: `[C, N + S]` float32 on the device; zeros from N on.
        reward, flags: `[S, T]`; rewards are scaled if the algorithm scales them.
        weight: `[S, T]` float32, staleness correction; 0 in rows that are not trained on.
        trained: `[S, T]` bool, rows that are trained on: those without a flag of `UNTRAINED`.
        progress: completed fraction of the run's steps at the start of the iteration, for schedules.
        rewarded: whether the learner has seen a reward other than 0. Until then every return is 0, and whatever a value
            network says of it is noise, which standardised advantages would amplify.
    """

    STATE: tuple[str, ...] = (
        "shape",
        "x",
        "action",
        "mask",
        "_columns",
        "reward",
        "flags",
        "weight",
        "_statistics",
        "progress",
    )
    """Everything that the remaining gradient steps read."""

    def __init__(self, nets: SegmentNetworks, streams: int, length: int, columns: Sequence[str]) -> None:
        self.shape, self.names = (streams, length), tuple(columns)
        self._nets, layout, self.progress, self.rewarded = nets, nets.layout, 0.0, False
        count, pinned = streams * length, nets.device.type == "cuda"
        rows = count + streams
        kind_x = torch.uint8 if nets.keeps_bytes else torch.float32
        self._x = torch.zeros(rows, layout.inputs, dtype=kind_x, pin_memory=pinned)
        self._action = nets.action_buffer(rows)
        self.mask: Tensor | None = None
        if nets.mask is not None:
            self.mask = torch.ones(rows, nets.outputs, dtype=torch.bool, device=nets.device)
        self._columns = torch.zeros(len(self.names), rows, pin_memory=pinned)
        self.x, self.action, self.columns = (
            t.to(nets.device) for t in (self._x, self._action, self._columns)
        )
        self.reward, self.weight = (np.zeros(self.shape, np.float32) for _ in range(2))
        self.flags = np.zeros(self.shape, np.uint8)
        self._statistics = nets.statistics
        self._value = torch.zeros(rows)
        self._pass = nets.make_pass(min(rows, CHUNK), gradient=False)

    @property
    def trained(self) -> NDArray[np.bool_]:
        """See the class docstring."""
        trained: NDArray[np.bool_] = (self.flags & UNTRAINED) == 0
        return trained

    @property
    def trained_streams(self) -> NDArray[np.int64]:
        """Indices of the streams with a trained row; all if there is none."""
        some: NDArray[np.bool_] = np.any(self.trained, axis=1)
        return np.flatnonzero(some) if some.any() else np.arange(len(some))

    def stage(self, segments: Sequence[Segment]) -> None:
        """Copy the segments, keep no reference; fill everything but `columns` and upload `x` and `action`."""
        streams, length = self.shape
        count, envs = streams * length, segments[0].num_envs
        x, action = self._x.numpy(), self._action.numpy()
        drawn = action[:count].reshape(*self.shape, *action.shape[1:])
        for i, segment in enumerate(segments):
            own = slice(i * envs, (i + 1) * envs)
            self._nets.normalized(segment.obs, x[own.start * length : own.stop * length])
            self._nets.normalized(segment.last_obs, x[count + own.start : count + own.stop])
            if self._nets.mask is not None and self.mask is not None:
                masks = self._nets.mask(segment.obs.reshape(-1, *segment.obs.shape[2:]))
                self.mask[own.start * length : own.stop * length] = torch.from_numpy(masks)
                self.mask[count + own.start : count + own.stop] = torch.from_numpy(
                    self._nets.mask(segment.last_obs)
                )
            taken = segment.extras.get("latent", segment.action)
            drawn[own] = taken.reshape(drawn[own].shape)
            self.reward[own], self.flags[own] = segment.reward, segment.flags
            self.weight[own] = segment.weight
        self._statistics = self._nets.statistics
        self.weight *= self.trained
        if self.x is not self._x:
            self.x.copy_(self._x, non_blocking=True)
            self.action.copy_(self._action)

    def renormalize(self) -> None:
        """Normalise `x` by the present statistics; values clipped earlier count as lying at their bound."""
        if not self._nets.layout.normalized:
            return
        now = self._nets.statistics
        before_mean, before_scale, mean, scale = (
            torch.from_numpy(a).to(self.x.device) for a in (*self._statistics, *now)
        )
        moved = (self.x / before_scale + (before_mean - mean)).mul_(scale)
        self.x.copy_(moved.clamp_(-OBSERVATION_CLIP, OBSERVATION_CLIP))
        self._statistics = now

    def minibatch(self, size: int) -> RowBatch:
        """Buffers of a gradient step over `size` rows."""
        raise NotImplementedError

    def _chunks(self) -> Iterator[slice] | Iterator[NDArray[np.int64]]:
        """Rows of each evaluation pass."""
        rows, size = self.x.shape[0], self._pass.x.shape[0]
        return (slice(start, min(start + size, rows)) for start in range(0, rows, size))

    def _prepared(self, rows: slice | NDArray[np.int64]) -> Any:
        """Pass with these rows as input; its buffer may hold further rows after them."""
        assert isinstance(rows, slice)
        fill_inputs(self._pass.x[: rows.stop - rows.start], self.x[rows], self._nets.byte_factor)
        return self._pass

    def place(self, work: NetworksPass, rows: NDArray[np.int64]) -> None:
        """Prepare a pass over `rows` beyond its input; does nothing here."""

    def standardised(self, advantage: NDArray[np.float32], rows: NDArray[np.bool_]) -> NDArray[np.float32]:
        """See `returns.standardised`; by the moments of all groups where these fuse gradients."""
        nets = self._nets
        return standardised(advantage, rows, nets.moments_of_all if nets.vector.on_moments else None)

    def fill(self, **columns: NDArray[np.float32]) -> None:
        """Write the columns, `[S, T]` each, and upload them."""
        host = self._columns.numpy()
        for name, values in columns.items():
            host[self.names.index(name), : values.size] = values.reshape(-1)
        if self.columns is not self._columns:
            self.columns.copy_(self._columns, non_blocking=True)

    def column(self, name: str) -> NDArray[np.float32]:
        """One column as a view `[S, T]` on the host; must not be written."""
        values: NDArray[np.float32] = self._columns.numpy()[self.names.index(name), : self.flags.size]
        return values.reshape(self.shape)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Copies on the host for inspection: rows `[N, ...]` in the order of the segments' streams."""
        count = self.shape[0] * self.shape[1]
        found: dict[str, NDArray[Any]] = {
            "obs": self.x[:count].cpu().numpy().copy(),
            "action": self.action[:count].cpu().numpy().copy(),
            "reward": self.reward.reshape(-1).copy(),
            "flags": self.flags.reshape(-1).copy(),
        }
        return found | {name: self.column(name).reshape(-1).copy() for name in self.names}

    def _restored(self) -> None:
        self.columns.copy_(self._columns)


class PolicyRollout(Rollout):
    """Rollout of a stochastic policy with a value network.

    Attributes:
        behaviour: `[S, T]` float32, log-probability of the action (or latent) under the behaviour policy.
    """

    STATE = (*Rollout.STATE, "behaviour")

    def __init__(self, nets: ActorCritic, streams: int, length: int, columns: Sequence[str]) -> None:
        super().__init__(nets, streams, length, columns)
        self._networks = nets
        self.behaviour = np.zeros(self.shape, np.float32)
        self._log_prob = torch.zeros_like(self._value)

    def stage(self, segments: Sequence[Segment]) -> None:
        """See `Rollout.stage`."""
        super().stage(segments)
        self.behaviour[:] = np.concatenate([segment.extras["log_prob"] for segment in segments])
        if (
            self._networks.layout.squashed
        ):  # from the stored density of tanh(u) to the density of the latent u
            slope = log_tanh_slope(self._action[: self.flags.size])
            self.behaviour += slope.sum(dim=1).numpy().reshape(self.shape)

    def minibatch(self, size: int) -> Minibatch:
        """See `Rollout`."""
        return Minibatch(self._networks, self, size)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """See `Rollout`."""
        return super().arrays() | {"behaviour_log_prob": self.behaviour.reshape(-1).copy()}

    def evaluate(
        self, log_prob: bool
    ) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]:
        """Run the networks over all rows. Waits for the device.

        Returns:
            Values `[S, T]`, values `[S]` of the observations after the last rows, and, if `log_prob`, log-probabilities
            `[S, T]` of the actions taken: float32 host arrays, overwritten by the next evaluation.
        """
        for own in self._chunks():
            work, action = self._prepared(own), self.action[own]
            size = action.shape[0]
            if log_prob:
                out, value = work.forward()
                allowed = forbid(out[:size], self.mask, own)
                self._log_prob[own] = self._networks.log_prob(allowed, action, self._networks.log_std).cpu()
            else:
                value = work.values()
            self._value[own] = value[:size].cpu()
        values, log_probs, count = self._value.numpy(), self._log_prob.numpy(), self.flags.size
        return values[:count].reshape(self.shape), values[count:], log_probs[:count].reshape(self.shape)


class RecurrentRollout(PolicyRollout):
    """Rollout of a recurrent policy: its streams are evaluated as sequences, starting from the stored states.

    The state before a segment's first row is the state that the actor stored there, in every epoch and every gradient
    step. It was computed with the weights that acted, and no gradient flows into it (truncated backpropagation through
    time, as in sb3-contrib's RecurrentPPO and CleanRL). Within the segment it is reset where the actor reset it: after
    a RESET row, where an episode or a new life of the actor begins.

    Attributes:
        state: `[S, state_size]` on the device, state before the first row of each stream.
    """

    STATE = (*PolicyRollout.STATE, "state")

    def __init__(self, nets: ActorCritic, streams: int, length: int, columns: Sequence[str]) -> None:
        super().__init__(nets, streams, length, columns)
        assert nets.layout.cell is not None
        self.state = torch.zeros(streams, nets.layout.cell.state_size, device=nets.device)

    def stage(self, segments: Sequence[Segment]) -> None:
        """See `Rollout.stage`."""
        super().stage(segments)
        states = np.concatenate([segment.extras["state"][:, 0] for segment in segments])
        self.state.copy_(torch.from_numpy(states))

    def place(self, work: NetworksPass, rows: NDArray[np.int64]) -> None:
        """Set the states and pieces of a pass over `rows`, which are a result of `rows_of_streams`."""
        assert isinstance(work, RecurrentPass)
        length = self.shape[1]
        count = rows.size // (length + 1)
        streams = rows[count * length :] - self.flags.size
        begins = np.zeros((count, length + 1), np.bool_)
        begins[:, 1:] = (self.flags[streams] & RESET) != 0
        order = np.arange(rows.size)
        table = np.concatenate((order[: count * length].reshape(count, length), order[-count:, None]), axis=1)
        work.pieces = cut_pieces(begins, table, self.state.device)
        work.state = self.state[torch.from_numpy(streams).to(self.state.device)]

    def _chunks(self) -> Iterator[NDArray[np.int64]]:
        streams, length = self.shape
        chunks = -(-streams * (length + 1) // CHUNK)
        for own in np.array_split(np.arange(streams), min(streams, chunks)):
            yield rows_of_streams(own, self.shape)

    def _prepared(self, rows: slice | NDArray[np.int64]) -> RecurrentPass:
        work = self._pass
        assert isinstance(work, RecurrentPass) and not isinstance(rows, slice)
        work.x = inputs_of(self.x[torch.from_numpy(rows).to(self.x.device)], self._nets.byte_factor)
        self.place(work, rows)
        return work


class RowBatch:
    """Buffers of a gradient step over R rows of a rollout.

    Attributes:
        size: R.
        part: rows of the last `forward`.
        rows: `[R]` int64 on the device, indices of the rows where a CUDA graph makes the step.
        action: `[R, ...]`, actions of these rows.
        columns: `[C, R]` float32, per-row arguments of the loss; gathered from the rollout's columns, or set by an
            algorithm whose rollout has none.
    """

    part: Part

    def __init__(self, nets: SegmentNetworks, rollout: Rollout, size: int) -> None:
        self.size, self._pass = size, nets.make_pass(size, gradient=True)
        self.rows = torch.zeros(size, dtype=torch.int64, device=nets.device)
        self._byte_factor = nets.byte_factor
        self.action = rollout.action.new_zeros((size, *rollout.action.shape[1:]))
        self.columns = rollout.columns.new_zeros((len(rollout.names), size))

    def forward(self, rollout: Rollout, part: Part, rows: Tensor) -> None:
        """Copy the rows of `part` (on the device: `rows`) and run the networks over them."""
        self.part = part
        rollout.place(self._pass, part.rows)
        if rollout.x.dtype == torch.uint8:
            fill_inputs(self._pass.x, rollout.x.index_select(0, rows), self._byte_factor)
        else:
            torch.index_select(rollout.x, 0, rows, out=self._pass.x)
        torch.index_select(rollout.action, 0, rows, out=self.action)
        if rollout.names:
            torch.index_select(rollout.columns, 1, rows, out=self.columns)

    def backward(self, gradients: Any) -> None:
        """Fill the networks' gradient from the gradients of the loss at the outputs."""
        raise NotImplementedError

    def backward_value(self, gradients: Any) -> None:
        """Fill the value network's part of the gradient, the other parts perhaps; where `value_passes` is above 0."""
        raise NotImplementedError

    def mean(self, values: Tensor) -> Tensor:
        """Mean of `values` `[R]` over the trained rows, a scalar; 0 if there are none."""
        return values[self.part.trained].sum() / max(self.part.samples, 1)


class Minibatch(RowBatch):
    """A `RowBatch` of a stochastic policy with a value network.

    Attributes:
        choices: number of logits of each choice of an action; empty for a Gaussian.
        out, value, log_std: outputs of the networks at the last `forward`, `[R, outputs]`, `[R]` and `[d]`; `log_std`
            is a copy, which `apply` does not change.
        kernel: kernel for the loss's gradients at these outputs; None on a GPU and for a recurrent policy.
    """

    out: Tensor
    value: Tensor

    def __init__(self, nets: ActorCritic, rollout: Rollout, size: int) -> None:
        super().__init__(nets, rollout, size)
        self._nets, self.choices = nets, nets.layout.choices
        self.log_std = nets.log_std.clone()
        self.kernel: LossKernel | None = None
        if nets.device.type == "cpu" and nets.layout.cell is None:  # the kernel assumes trained rows first
            self.kernel = LossKernel(self.action, self.choices, nets.layout.outputs, nets.bounds)

    def forward(self, rollout: Rollout, part: Part, rows: Tensor) -> None:
        """Copy the rows of `part` (on the device: `rows`) and run both networks over them."""
        super().forward(rollout, part, rows)
        out, self.value = self._pass.forward()
        self.out = forbid(out, rollout.mask, rows)
        if not self.choices:
            self.log_std.copy_(self._nets.log_std)

    @property
    def outputs(self) -> Outputs:
        """`out`, `value` and `log_std`."""
        return self.out, self.value, self.log_std

    def distribution(self, out: Tensor, log_std: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probability and entropy of the actions, `[R]` each, for these policy outputs."""
        return self._nets.distribution(out, self.action, log_std)

    def log_prob(self) -> Tensor:
        """Log-probabilities `[R]` of the actions at the last `forward`."""
        return self._nets.log_prob(self.out, self.action, self.log_std)

    def backward(self, gradients: Outputs) -> None:
        """Fill the networks' gradient from the gradients of the loss at `outputs`, and add the penalty of bounds."""
        if self.kernel is None:  # whose gradients include it
            self._nets.add_bounds_gradient(gradients[0], self.out, self.columns[WEIGHT])
        self._pass.backward(*gradients)

    def backward_value(self, gradients: Outputs) -> None:
        """Fill the value network's part of the gradient; that of a shared trunk is filled as well."""
        if isinstance(self._pass, ActorCriticPass):
            self._pass.backward_value(gradients[1])
        else:
            self._pass.backward(*gradients)


def fill_inputs(x: Tensor, rows: Tensor, byte_factor: float) -> None:
    """Copy a rollout's `rows` into a pass's float32 input; bytes are scaled on the input's device."""
    x.copy_(rows)
    if rows.dtype == torch.uint8 and byte_factor != 1:
        x.mul_(byte_factor)


def inputs_of(rows: Tensor, byte_factor: float) -> Tensor:
    """A rollout's `rows` as network inputs; bytes are scaled in float32."""
    return rows * byte_factor if rows.dtype == torch.uint8 else rows


def forbid(out: Tensor, mask: Tensor | None, rows: Tensor | slice | NDArray[np.int64]) -> Tensor:
    """Logits `out` with those that `mask` forbids so low that their probability and gradient are exactly 0."""
    return out if mask is None else out.masked_fill(~mask[rows], float(FORBIDDEN))


def rows_of_streams(streams: NDArray[np.int64], shape: tuple[int, int]) -> NDArray[np.int64]:
    """Rows of whole `streams` `[G]` of a rollout of `shape`: T rows each, then the observations after their ends."""
    count, length = shape
    own = (streams[:, None] * length + np.arange(length)).reshape(-1)
    return np.concatenate((own, count * length + streams))


def parts_of_rows(rollout: Rollout, count: int, size: int, seed: Sequence[int]) -> list[Part]:
    """Divide a permutation of the trained rows evenly into `count` gradient steps, padded to `size` rows with row N."""
    trained, padding = np.flatnonzero(rollout.trained), rollout.flags.size
    chosen = np.array_split(np.random.default_rng(seed).permutation(trained), count)
    rows = np.full((count, min(size, padding)), padding, np.int64)
    for own, part in zip(rows, chosen, strict=True):
        own[: part.size] = part
    return [Part(own, slice(part.size), part.size) for own, part in zip(rows, chosen, strict=True)]


def parts_of_streams(rollout: Rollout, groups: Iterable[NDArray[np.int64]]) -> list[Part]:
    """Gradient steps over whole streams, one per group."""
    trained = rollout.trained
    found = []
    for streams in groups:
        own = np.flatnonzero(trained[streams])
        found.append(Part(rows_of_streams(streams, rollout.shape), own, own.size))
    return found
