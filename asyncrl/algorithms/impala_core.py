"""The learner's half of IMPALA and A2C: streams of an iteration, without autograd (see `networks/mlp.py`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from asyncrl.algorithms.impala_step import StreamStep
from asyncrl.algorithms.on_policy_core import OnPolicyCore
from asyncrl.algorithms.rollout import NUMBERS, Rollout
from asyncrl.interfaces import EnvSpec

if TYPE_CHECKING:
    from asyncrl.algorithms.impala import IMPALA


class IMPALACore(OnPolicyCore):
    """Networks, loss and optimiser of one IMPALA learner. Implements `asyncrl.interfaces.SegmentCore`.

    A gradient step is one forward pass over whole streams, V-trace on the host
    with what that pass says of values and log-probabilities, and one way back: targets are never older than the
    weights that learn from them, in however many passes. On a GPU a step waits for the device.

    Args:
        config: hyper-parameters.
        spec: the environment.
        device: `"cpu"` or `"cuda"`.
        seed: of the initial weights and of the order of streams.
    """

    def __init__(self, config: IMPALA, spec: EnvSpec, device: str = "cpu", seed: int = 0) -> None:
        super().__init__(config, spec, device, seed)
        self.config = config
        self._reward = np.zeros((0, 0), np.float32)
        self._order: list[NDArray[np.int64]] = []
        self._streams: dict[tuple[int, int], StreamStep] = {}
        self._last: StreamStep | None = None

    def _shuffle(self, rollout: Rollout) -> int:
        """Divide the streams into minibatches."""
        self._reward = self._scaled_reward(rollout)
        streams = rollout.shape[0]
        parts = min(self.config.minibatches, streams)
        order = np.arange(streams) if parts == 1 else self._pass_rng().permutation(streams)
        self._order = np.array_split(order, parts)
        return parts

    def _gradient(self, rollout: Rollout) -> int:
        """That of whole streams, whose targets are of the weights as they stand."""
        chosen = self._order[self._position]
        size = chosen.size, rollout.shape[1]
        if size not in self._streams:
            self._streams[size] = StreamStep(self.nets, rollout, chosen.size)
        self._last = self._streams[size]
        self._last.gather(rollout, self._reward, chosen)
        self._last.gradient(self.config)
        return self._last.count

    def batch(self) -> Mapping[str, NDArray[Any]]:
        """As `OnPolicyCore.batch`, without what only PPO fills."""
        return {name: array for name, array in super().batch().items() if name not in NUMBERS}

    def _step_metrics(self) -> Mapping[str, float]:
        """Losses, entropy and importance ratios."""
        return {} if self._last is None else self._last.metrics(self.config)
