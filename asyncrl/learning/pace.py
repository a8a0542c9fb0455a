"""Counts that the balances of all disciplines have in common; see `balance.py`."""

from __future__ import annotations

from asyncrl.interfaces import Metrics

UNLIMITED = 1 << 62


class Pace:
    """Base of the balances: steps inserted, samples trained on, and the cursor between them. Learner thread only.

    Args:
        samples_per_insert: how often a sample is trained on, or None for a free pace.
        learning_starts: I0 in environment steps.
        max_env_steps: number of environment steps at which the run ends, or None.
        num_agents: samples that one environment step inserts; sigma is `samples_per_insert` times this.

    Attributes:
        discipline: `replay`, or the discipline of segments or lockstep replay.
    """

    discipline: str = "replay"
    STATE: tuple[str, ...] = ("_inserted", "_sampled")

    def __init__(
        self,
        samples_per_insert: float | None,
        learning_starts: int,
        max_env_steps: int | None,
        num_agents: float = 1,
    ) -> None:
        self._target, self._num_agents = samples_per_insert, num_agents
        self._sigma = None if samples_per_insert is None else samples_per_insert * num_agents
        self._start = self._learning_starts = learning_starts
        self._max_steps = UNLIMITED if max_env_steps is None else max_env_steps
        self._inserted = self._sampled = 0

    def inserted(self, steps: int) -> None:
        """Count `steps` more inserted environment steps (RESET rows excluded)."""
        self._inserted += steps

    def sampled(self, samples: int) -> None:
        """Count `samples` more training samples."""
        self._sampled += samples

    def refill(self) -> None:
        """Allow no update before `learning_starts` further steps, for a resumed run with an empty replay."""
        self._start += min(self._inserted, self._learning_starts)

    @property
    def complete(self) -> bool:
        """Whether `max_env_steps` are inserted, so that there are no further steps."""
        return self._inserted >= self._max_steps

    @property
    def cursor(self) -> float:
        """Production ahead of consumption in samples, equation (1); 0 if the pace is free."""
        return 0.0 if self._sigma is None else self._sigma * (self._inserted - self._start) - self._sampled

    @property
    def achieved(self) -> float:
        """Samples per agent and step inserted after `learning_starts`; 0 before the first."""
        since_start = (self._inserted - self._start) * self._num_agents
        return self._sampled / since_start if since_start > 0 else 0.0

    def statistics(self) -> Metrics:
        """Present numbers by public name."""
        return {
            "async/samples_per_insert": self.achieved,
            "async/samples_per_insert_target": self._target,
            "received_steps": self._inserted,
            "consumed_samples": self._sampled,
        }
