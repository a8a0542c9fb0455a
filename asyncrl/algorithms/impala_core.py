"""The learner's half of IMPALA and A2C: iterations over segments, without autograd (see `networks.py` for why)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from asyncrl.algorithms.actor_critic import ActorCritic, require_like
from asyncrl.algorithms.impala_step import StreamStep
from asyncrl.algorithms.normalization import RewardScale
from asyncrl.algorithms.rollout import NUMBERS, Rollout
from asyncrl.core import RESET, EnvSpec, Segment
from asyncrl.schedules import linear

if TYPE_CHECKING:
    from asyncrl.algorithms.impala import IMPALA

_COUNTERS = ("seed", "iterations", "updates", "samples")
_PROGRESS = ("epoch", "last_epoch", "position", "reusable")
_ROWS = ("reward", "flags", "behaviour", "weight")


class IMPALACore:
    """Networks, loss and optimiser of one IMPALA learner. Implements `asyncrl.core.SegmentCore`.

    Used from one thread, the learner's. A gradient step is one forward pass over whole streams, V-trace on the host
    with what that pass says of values and log-probabilities, and one way back: targets are never older than the
    weights that learn from them, in however many passes. On a GPU a step waits for the device.

    Which streams make up a gradient step depends on the seed, the number of the iteration and of the pass only, so
    numbers do not depend on when `step` is called.

    Args:
        config: hyper-parameters.
        spec: the environment.
        device: `"cpu"` or `"cuda"`.
        seed: of the initial weights and of the order of streams.
    """

    def __init__(self, config: IMPALA, spec: EnvSpec, device: str = "cpu", seed: int = 0) -> None:
        self.config = config
        self.nets = ActorCritic(
            config.layout(spec),
            value_hidden=config.value_hidden_sizes,
            device=device,
            seed=seed,
            max_grad_norm=config.max_grad_norm,
            adam_eps=config.adam_eps,
            initial_log_std=config.initial_log_std,
        )
        self.weight_count = self.nets.weight_count
        self._seed, self._iterations, self._updates, self._samples = seed, 0, 0, 0
        self._rewards = RewardScale(config.gamma)
        self._rollout: Rollout | None = None
        self._reward = np.zeros((0, 0), np.float32)
        self._streams: dict[int, StreamStep] = {}
        self._last: StreamStep | None = None
        self._learning_rate = config.learning_rate
        self._end()

    def _end(self) -> None:
        """No passes are left."""
        self._epoch, self._last_epoch, self._position, self._reusable = 0, 0, 0, 0
        self._order: list[NDArray[np.int64]] = []

    @torch.inference_mode()
    def begin(self, segments: Sequence[Segment], progress: float) -> None:
        """Copy the segments in and prepare the passes over them.

        Args:
            segments: at least one, all of one shape; nothing of them is kept.
            progress: share of the run's steps that is done, for the learning rate.
        """
        config, first = self.config, segments[0]
        rollout = self._rollout_of(len(segments) * first.num_envs, first.num_rows)
        rollout.stage(segments)
        for segment in (s for s in segments if s.fresh):
            self.nets.observe(segment.obs, (segment.flags & RESET) == 0)
        self._reward = rollout.reward
        if config.normalize_rewards:
            self._rewards.observe(segments)
            self._reward = self._rewards.scaled(rollout.reward)
        falls = config.learning_rate_schedule == "linear"
        self._learning_rate = linear(config.learning_rate, 0.0, progress) if falls else config.learning_rate
        self._iterations += 1
        self._epoch, self._last_epoch, self._reusable = 0, config.epochs, config.reuse_epochs
        self._shuffle()

    def _rollout_of(self, streams: int, length: int) -> Rollout:
        if self._rollout is None or self._rollout.shape != (streams, length):
            self._rollout, self._streams = Rollout(self.nets, streams, length), {}
        return self._rollout

    def _shuffle(self) -> None:
        """Divide the streams into the minibatches of the pass that begins."""
        assert self._rollout is not None
        streams = self._rollout.shape[0]
        parts = min(self.config.minibatches, streams)
        if parts == 1:
            self._order = [np.arange(streams)]
        else:
            rng = np.random.default_rng((self._seed, self._iterations, self._epoch))
            self._order = np.array_split(rng.permutation(streams), parts)
        self._position = 0

    @torch.inference_mode()
    def step(self) -> bool:
        """One gradient step; returns whether the iteration has another one.

        Raises:
            RuntimeError: every step that `begin` has prepared was made.
        """
        if self._epoch >= self._last_epoch or self._rollout is None:
            raise RuntimeError("step needs an iteration that is not finished; call begin first")
        chosen = self._order[self._position]
        streams = self._streams.get(chosen.size)
        if streams is None:
            streams = self._streams[chosen.size] = StreamStep(self.nets, self._rollout, chosen.size)
        streams.gather(self._rollout, self._reward, chosen)
        streams.gradient(self.config)
        self.nets.apply(self._learning_rate)
        self._last = streams
        self._updates += 1
        self._samples += streams.count
        self._position += 1
        if self._position == len(self._order):
            self._epoch += 1
            if self._epoch < self._last_epoch:
                self._shuffle()
        if self._epoch < self._last_epoch:
            return True
        self.nets.move_statistics()
        return False

    def again(self) -> bool:
        """Prepare another pass over the same rows, of which `reuse_epochs` are allowed; False if none is."""
        if self._rollout is None or self._epoch < self._last_epoch or not self._reusable:
            return False
        self._reusable -= 1
        self._last_epoch += 1
        self._shuffle()
        return True

    @property
    def samples(self) -> int:
        """Samples trained on since the start: a step counts as often as it is used."""
        return self._samples

    def batch(self) -> Mapping[str, NDArray[Any]]:
        """The arrays that the present (or last) iteration trains on, as host copies; empty before the first."""
        if self._rollout is None:
            return {}
        return {name: array for name, array in self._rollout.arrays().items() if name not in NUMBERS}

    def write_weights(self, out: NDArray[np.float32]) -> None:
        """Copy what acts into `out` `[weight_count]`, in the order of `ActorLayout`."""
        self.nets.write_weights(out)

    @torch.inference_mode()
    def metrics(self) -> Mapping[str, float]:
        """Losses, entropy and importance ratios of the last gradient step; waits for the device.

        Before the first step there is only the learning rate.
        """
        values = {"train/learning_rate": self._learning_rate}
        if self._last is not None:
            values |= self._last.metrics(self.config)
        if self.nets.grad_norm is not None:
            values["train/grad_norm"] = float(self.nets.grad_norm)
        return values

    def state_dict(self) -> Mapping[str, Any]:
        """Networks, optimiser, statistics and counters, and, between two steps, what the rest of them needs."""
        goes_on = self._epoch < self._last_epoch or self._reusable > 0
        iteration: dict[str, Any] = {}
        if goes_on and self._rollout is not None:
            iteration = {
                "rollout": self._rollout.state_dict(),
                "rows": {name: getattr(self._rollout, name).copy() for name in _ROWS},
                "scaled_reward": self._reward.copy(),
                "progress": {name: getattr(self, f"_{name}") for name in _PROGRESS},
            }
        return {
            "networks": self.nets.state_dict(),
            "rewards": self._rewards.state_dict(),
            "counters": {name: getattr(self, f"_{name}") for name in _COUNTERS},
            "learning_rate": self._learning_rate,
            "iteration": iteration,
        }

    @torch.inference_mode()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` returned, to the same numbers on the same device.

        Raises:
            ValueError: a part is missing or has another shape.
        """
        free = {"rewards": None, "iteration": None}
        require_like({**state, **free}, {**self.state_dict(), **free}, "state")
        if set(free) - set(state):
            raise ValueError(f"state must hold {sorted(free)}, got {sorted(state)}")
        self.nets.load_state_dict(state["networks"])
        self._rewards.load_state_dict(state["rewards"])
        for name in _COUNTERS:
            setattr(self, f"_{name}", int(state["counters"][name]))
        self._learning_rate = float(state["learning_rate"])
        self._end()
        if state["iteration"]:
            self._resume(state["iteration"])

    def _resume(self, state: Mapping[str, Any]) -> None:
        saved, progress = state["rollout"], state["progress"]
        rollout = self._rollout_of(int(saved["streams"]), int(saved["length"]))
        rollout.load_state_dict(saved)
        for name in _ROWS:
            np.copyto(getattr(rollout, name), state["rows"][name])
        self._reward = np.array(state["scaled_reward"], np.float32)
        self._epoch, self._last_epoch = int(progress["epoch"]), int(progress["last_epoch"])
        self._reusable = int(progress["reusable"])
        if self._epoch < self._last_epoch:
            self._shuffle()
            self._position = int(progress["position"])
