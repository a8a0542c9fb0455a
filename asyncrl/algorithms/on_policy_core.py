"""The learner's half that all on-policy algorithms share: an iteration over segments, cut into passes and steps.

A core of one algorithm extends `OnPolicyCore` and says three things: what is made of the segments before the first pass
(`_prepare`), into how many gradient steps a pass is divided (`_shuffle`), and the gradient of one (`_gradient`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from asyncrl.acting.schedules import linear
from asyncrl.algorithms.actor_critic import ActorCritic
from asyncrl.algorithms.normalization import RewardScale
from asyncrl.algorithms.rollout import Rollout
from asyncrl.algorithms.saved_state import require_like
from asyncrl.interfaces import RESET, EnvSpec, Segment

if TYPE_CHECKING:
    from asyncrl.algorithms.on_policy import OnPolicy

_COUNTERS = ("seed", "iterations", "updates", "samples")
_PROGRESS = ("epoch", "last_epoch", "position", "reusable")
_NUMBERS = ("learning_rate", "explained_variance")
_FREE = ("rewards", "iteration")
"""Parts of a state whose shape depends on how far training is."""


class OnPolicyCore:
    """Networks, optimiser and the course of an iteration. Answers `asyncrl.interfaces.SegmentCore` but for `_gradient`.

    Used from one thread, the learner's. What makes up a gradient step depends on the seed, the number of the iteration
    and of the pass only, so numbers do not depend on when `step` is called.

    Args:
        config: hyper-parameters.
        spec: the environment.
        device: `"cpu"` or `"cuda"`.
        seed: of the initial weights and of the order within passes.
    """

    def __init__(self, config: OnPolicy, spec: EnvSpec, device: str, seed: int) -> None:
        self._options = config
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
        self._epoch, self._last_epoch, self._position, self._reusable = 0, 0, 0, 0
        self._steps_of_pass = 0
        self._rewards = RewardScale(config.gamma)
        self._rollout: Rollout | None = None
        self._learning_rate = config.learning_rate
        self._explained_variance: float | None = None

    # --- what an algorithm says ---------------------------------------------------------------------------------------

    def _prepare(self, rollout: Rollout) -> None:
        """Make of the staged segments what all passes need; nothing by default."""

    def _shuffle(self, rollout: Rollout) -> int:
        """Divide the pass that begins; returns into how many gradient steps."""
        raise NotImplementedError

    def _gradient(self, rollout: Rollout) -> int | None:
        """Fill the gradient of step `_position` of the pass; returns its samples, None to end the iteration here."""
        raise NotImplementedError

    # --- an iteration -------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def begin(self, segments: Sequence[Segment], progress: float) -> None:
        """Copy the segments in and prepare the passes over them.

        Args:
            segments: at least one, all of one shape; nothing of them is kept.
            progress: share of the run's steps that is done, for the learning rate.
        """
        config, first = self._options, segments[0]
        rollout = self._rollout_of(len(segments) * first.num_envs, first.num_rows)
        rollout.stage(segments)
        for segment in (s for s in segments if s.fresh):
            self.nets.observe(segment.obs, (segment.flags & RESET) == 0)
        if config.normalize_rewards:
            self._rewards.observe(segments)
        falls = config.learning_rate_schedule == "linear"
        self._learning_rate = linear(config.learning_rate, 0.0, progress) if falls else config.learning_rate
        self._iterations += 1
        self._epoch, self._last_epoch, self._reusable = 0, config.epochs, config.reuse_epochs
        self._prepare(rollout)
        self._begin_pass(rollout)

    def _rollout_of(self, streams: int, length: int) -> Rollout:
        if self._rollout is None or self._rollout.shape != (streams, length):
            self._rollout = Rollout(self.nets, streams, length)
        return self._rollout

    def _begin_pass(self, rollout: Rollout) -> None:
        self._steps_of_pass, self._position = self._shuffle(rollout), 0

    def _pass_rng(self) -> np.random.Generator:
        """A generator for the order within this pass."""
        return np.random.default_rng((self._seed, self._iterations, self._epoch))

    def _scaled_reward(self, rollout: Rollout) -> NDArray[np.float32]:
        """The rollout's rewards `[S, T]`, scaled where that is wanted; not to be written."""
        return self._rewards.scaled(rollout.reward) if self._options.normalize_rewards else rollout.reward

    @torch.inference_mode()
    def step(self) -> bool:
        """One gradient step; returns whether the iteration has another one.

        Raises:
            RuntimeError: every step that `begin` has prepared was made.
        """
        rollout = self._rollout
        if self._epoch >= self._last_epoch or rollout is None:
            raise RuntimeError("step needs an iteration that is not finished; call begin first")
        samples = self._gradient(rollout)
        if samples is None:
            self._epoch, self._reusable = self._last_epoch, 0
        else:
            self._count(samples, rollout)
        if self._epoch < self._last_epoch:
            return True
        self.nets.move_statistics()
        return False

    def _count(self, samples: int, rollout: Rollout) -> None:
        """Take the step whose gradient is filled, and go on to the next one, or to the next pass."""
        self.nets.apply(self._learning_rate)
        self._updates += 1
        self._samples += samples
        self._position += 1
        if self._position == self._steps_of_pass:
            self._epoch += 1
            if self._epoch < self._last_epoch:
                self._begin_pass(rollout)

    @torch.inference_mode()
    def again(self) -> bool:
        """Prepare another pass over the same rows, of which `reuse_epochs` are allowed; False if none is."""
        if self._rollout is None or self._epoch < self._last_epoch or not self._reusable:
            return False
        self._rollout.renormalize()  # the statistics have moved when the last pass ended
        self._reusable -= 1
        self._last_epoch += 1
        self._begin_pass(self._rollout)
        return True

    # --- looking and keeping ------------------------------------------------------------------------------------------

    @property
    def samples(self) -> int:
        """Samples trained on since the start: a step counts as often as it is used."""
        return self._samples

    def batch(self) -> Mapping[str, NDArray[Any]]:
        """The arrays that the present (or last) iteration trains on, as host copies; empty before the first."""
        return {} if self._rollout is None else self._rollout.arrays()

    def write_weights(self, out: NDArray[np.float32]) -> None:
        """Copy what acts into `out` `[weight_count]`, in the order of `ActorLayout`."""
        self.nets.write_weights(out)

    @torch.inference_mode()
    def metrics(self) -> Mapping[str, float]:
        """Learning rate, and what is known of the last gradient step; waits for the device."""
        values = {"train/learning_rate": self._learning_rate, **self._step_metrics()}
        if self._explained_variance is not None:
            values["train/explained_variance"] = self._explained_variance
        norm = self.nets.grad_norm
        if norm is not None:
            values["train/grad_norm"] = float(norm)
        return values

    def _step_metrics(self) -> Mapping[str, float]:
        """Scalars of the last gradient step; empty before the first."""
        raise NotImplementedError

    def state_dict(self) -> Mapping[str, Any]:
        """Networks, optimiser, statistics and counters, and, between two steps, what the rest of them needs."""
        iteration: dict[str, Any] = {}
        if self._rollout is not None and (self._epoch < self._last_epoch or self._reusable):
            progress = {name: getattr(self, f"_{name}") for name in _PROGRESS}
            iteration = {"rollout": self._rollout.state_dict(), "progress": progress}
        return {
            "networks": self.nets.state_dict(),
            "rewards": self._rewards.state_dict(),
            "counters": {name: getattr(self, f"_{name}") for name in _COUNTERS},
            **{name: getattr(self, f"_{name}") for name in _NUMBERS},
            "iteration": iteration,
        }

    @torch.inference_mode()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` returned, to the same numbers on the same device.

        Raises:
            ValueError: a part is missing or has another shape.
        """
        free = dict.fromkeys(_FREE)
        require_like({**state, **free}, {**self.state_dict(), **free}, "state")
        if set(free) - set(state):
            raise ValueError(f"state must hold {sorted(free)}, got {sorted(state)}")
        self.nets.load_state_dict(state["networks"])
        self._rewards.load_state_dict(state["rewards"])
        for name in _COUNTERS:
            setattr(self, f"_{name}", int(state["counters"][name]))
        for name in _NUMBERS:
            setattr(self, f"_{name}", state[name])
        self._epoch = self._last_epoch = self._position = self._reusable = 0
        if state["iteration"]:
            self._resume(state["iteration"])

    def _resume(self, state: Mapping[str, Any]) -> None:
        saved = state["rollout"]
        rollout = self._rollout_of(int(saved["streams"]), int(saved["length"]))
        rollout.load_state_dict(saved)
        for name in _PROGRESS:
            setattr(self, f"_{name}", int(state["progress"][name]))
        if self._epoch < self._last_epoch:
            position = self._position
            self._begin_pass(rollout)
            self._position = position
