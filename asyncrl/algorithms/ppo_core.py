"""The learner's half of PPO: iterations over segments, without autograd (see `networks.py` for why)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from asyncrl.algorithms.actor_critic import ActorCritic, require_like
from asyncrl.algorithms.normalization import RewardScale
from asyncrl.algorithms.ppo_minibatch import Minibatch
from asyncrl.algorithms.rollout import Rollout
from asyncrl.core import RESET, EnvSpec, Segment
from asyncrl.distributions import distribution
from asyncrl.losses.advantages import gae
from asyncrl.losses.policy_gradient import truncated_importance
from asyncrl.schedules import linear

if TYPE_CHECKING:
    from asyncrl.algorithms.ppo import PPO

_COUNTERS = ("seed", "iterations", "updates", "samples")


class PPOCore:
    """Networks, loss and optimiser of one PPO learner. Implements `asyncrl.core.SegmentCore`.

    Used from one thread, the learner's. Minibatches come from a permutation that depends on the seed, the number of
    the iteration and of the pass only, so that numbers do not depend on when `step` is called. Rows are divided evenly
    into as few minibatches as `minibatch_size` allows, which are padded to one size with rows of weight zero.

    Staleness: with `importance`, ratios are clipped against the policy as it stands when the iteration begins (the
    proximal policy of Hilton et al. 2021), and the loss of a row is weighted by what it gives the action over what
    the behaviour policy gave it, at most `rho_bar`. Otherwise ratios are taken of the behaviour policy itself.

    Args:
        config: hyper-parameters.
        spec: the environment.
        device: `"cpu"` or `"cuda"`.
        seed: of the initial weights and the permutations.
    """

    def __init__(self, config: PPO, spec: EnvSpec, device: str = "cpu", seed: int = 0) -> None:
        self.config = config
        layout = config.layout(spec)
        self.nets = ActorCritic(
            layout,
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
        self._batch: Minibatch | None = None
        self._learning_rate = config.learning_rate
        self._explained_variance: float | None = None
        self._end()

    def _end(self) -> None:
        """No passes are left."""
        self._epoch, self._last_epoch, self._position = 0, 0, 0
        self._order = torch.zeros(0, 0, dtype=torch.int64)
        self._reusable = 0

    @torch.inference_mode()
    def begin(self, segments: Sequence[Segment], progress: float) -> None:
        """Copy the segments in, estimate advantages, and prepare the passes over them.

        Args:
            segments: at least one, all of one shape; nothing of them is kept.
            progress: share of the run's steps that is done, for the learning rate.
        """
        config, first = self.config, segments[0]
        shape = len(segments) * first.num_envs, first.num_rows
        if self._rollout is None or self._rollout.shape != shape:
            self._rollout = Rollout(self.nets, *shape)
        self._rollout.stage(segments)
        for segment in (s for s in segments if s.fresh):
            self.nets.observe(segment.obs, (segment.flags & RESET) == 0)
        if config.normalize_rewards:
            self._rewards.observe(segments)
        self._estimate(self._rollout)
        falls = config.learning_rate_schedule == "linear"
        self._learning_rate = linear(config.learning_rate, 0.0, progress) if falls else config.learning_rate
        self._iterations += 1
        self._epoch, self._last_epoch, self._reusable = 0, config.epochs, config.reuse_epochs
        self._shuffle()

    @np.errstate(over="ignore", invalid="ignore")
    def _estimate(self, rollout: Rollout) -> None:
        """Fill the rollout's numbers: values, advantages, and both log-probabilities.

        Where numbers have left float32's range it is the learner that says so, by the weights that come of it.
        """
        config = self.config
        decoupled = config.staleness_correction == "importance"
        value, last, log_prob = rollout.look(distribution(self.nets.layout) if decoupled else None)
        policy_weight = rollout.weight
        if decoupled:
            proximal, behaviour = (torch.from_numpy(a.reshape(-1)) for a in (log_prob, rollout.behaviour))
            rho = truncated_importance(proximal, behaviour, config.rho_bar)
            policy_weight = np.where(
                rollout.weight == 0, 0, rollout.weight * rho.numpy().reshape(rollout.shape)
            )
        reward = self._rewards.scaled(rollout.reward) if config.normalize_rewards else rollout.reward
        advantage, target = gae(reward, value, last, rollout.flags, config.gamma, config.gae_lambda)
        self._explained_variance = _explained_variance(value, target, rollout.valid)
        # Every row has the same share in its minibatch's mean, however the rows were divided.
        share = np.float32(self._minibatches(rollout) / max(rollout.valid.size, 1))
        rollout.fill(
            log_prob=log_prob if decoupled else rollout.behaviour,
            advantage=_standardised(advantage, rollout.valid) if config.normalize_advantages else advantage,
            target=target,
            value=value,
            policy_weight=policy_weight * share,
            value_weight=rollout.weight * (share * config.value_coefficient),
            entropy_weight=rollout.weight * (-share * config.entropy_coefficient),
        )

    def _minibatches(self, rollout: Rollout) -> int:
        """How many gradient steps a pass has."""
        return max(1, -(-rollout.valid.size // self.config.minibatch_size))

    def _shuffle(self) -> None:
        """Divide the rows into the minibatches of the pass that begins, padded with row N."""
        assert self._rollout is not None
        valid, size = self._rollout.valid, self.config.minibatch_size
        rng = np.random.default_rng((self._seed, self._iterations, self._epoch))
        parts = np.array_split(rng.permutation(valid), self._minibatches(self._rollout))
        self._counts = [part.size for part in parts]
        size = min(size, self._rollout.shape[0] * self._rollout.shape[1])
        order = np.full((len(parts), size), self._rollout.shape[0] * self._rollout.shape[1], np.int64)
        for row, part in zip(order, parts, strict=True):
            row[: part.size] = part
        self._order = torch.from_numpy(order).to(self.nets.device)
        self._position = 0
        if self._batch is None or self._batch.size != size:
            self._batch = Minibatch(self.config, self.nets, self._rollout, size)

    @torch.inference_mode()
    def step(self) -> bool:
        """One gradient step; returns whether the iteration has another one.

        Raises:
            RuntimeError: every step that `begin` has prepared was made.
        """
        if self._epoch >= self._last_epoch or self._rollout is None or self._batch is None:
            raise RuntimeError("step needs an iteration that is not finished; call begin first")
        batch = self._batch
        batch.gather(self._rollout, self._order[self._position], self._counts[self._position])
        if batch.gradient():
            self.nets.apply(self._learning_rate)
            self._updates += 1
            self._samples += batch.count
            self._position += 1
        else:
            self._epoch, self._reusable = self._last_epoch, 0
        if self._position == len(self._counts):
            self._epoch += 1
            if self._epoch < self._last_epoch:
                self._shuffle()
        if self._epoch < self._last_epoch:
            return True
        self.nets.move_statistics()
        return False

    @torch.inference_mode()
    def again(self) -> bool:
        """Prepare another pass over the same rows, of which `reuse_epochs` are allowed; False if none is."""
        if self._rollout is None or self._epoch < self._last_epoch or not self._reusable:
            return False
        self._rollout.renormalize()
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
        return {} if self._rollout is None else self._rollout.arrays()

    def write_weights(self, out: NDArray[np.float32]) -> None:
        """Copy what acts into `out` `[weight_count]`, in the order of `ActorLayout`."""
        self.nets.write_weights(out)

    @torch.inference_mode()
    def metrics(self) -> Mapping[str, float]:
        """Losses, entropy, divergence and clipped share of the last gradient step; waits for the device.

        `train/explained_variance` is that of the values when the iteration began. Before the first step there are
        only it and the learning rate.
        """
        values = {"train/learning_rate": self._learning_rate}
        if self._explained_variance is not None:
            values["train/explained_variance"] = self._explained_variance
        if self._batch is not None:
            values |= self._batch.metrics()
        if self.nets.grad_norm is not None:
            values["train/grad_norm"] = float(self.nets.grad_norm)
        return values

    def state_dict(self) -> Mapping[str, Any]:
        """Networks, optimiser, statistics and counters, and, between two steps, what the rest of them needs."""
        goes_on = self._rollout is not None and (self._epoch < self._last_epoch or self._reusable > 0)
        iteration: dict[str, Any] = {}
        if goes_on and self._rollout is not None:
            iteration = {
                "rollout": self._rollout.state_dict(),
                "epoch": self._epoch,
                "last_epoch": self._last_epoch,
                "position": self._position,
                "reusable": self._reusable,
            }
        return {
            "networks": self.nets.state_dict(),
            "rewards": self._rewards.state_dict(),
            "counters": {name: getattr(self, f"_{name}") for name in _COUNTERS},
            "learning_rate": self._learning_rate,
            "explained_variance": self._explained_variance,
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
        self._learning_rate, self._explained_variance = state["learning_rate"], state["explained_variance"]
        self._end()
        if state["iteration"]:
            self._resume(state["iteration"])

    def _resume(self, state: Mapping[str, Any]) -> None:
        saved = state["rollout"]
        self._rollout = Rollout(self.nets, int(saved["streams"]), int(saved["length"]))
        self._rollout.load_state_dict(saved)
        self._epoch, self._last_epoch = int(state["epoch"]), int(state["last_epoch"])
        self._reusable = int(state["reusable"])
        self._shuffle()
        self._position = int(state["position"])


def _standardised(advantage: NDArray[np.float32], valid: NDArray[np.int64]) -> NDArray[np.float32]:
    """`advantage` with mean 0 and deviation 1 over the rows `valid`; zero elsewhere."""
    flat = advantage.reshape(-1)
    result, own = np.zeros_like(flat), flat[valid]
    if own.size:
        result[valid] = (own - own.mean()) / (own.std() + np.float32(1e-8))
    return result.reshape(advantage.shape)


def _explained_variance(
    value: NDArray[np.float32], target: NDArray[np.float32], valid: NDArray[np.int64]
) -> float:
    """Share of the targets' variance over the rows `valid` that the values explain; 0 where there is none."""
    own = target.reshape(-1)[valid]
    variance = float(own.var()) if own.size else 0.0
    return 1.0 - float((own - value.reshape(-1)[valid]).var()) / variance if variance > 0 else 0.0
