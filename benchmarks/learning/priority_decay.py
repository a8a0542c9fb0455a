"""Whether priorities should fall with staleness or with the policy's change: DQN on CartPole-v1.

One of eight actors is ten times slower. DistRL (arXiv 2410.14803) draws trajectories by priority = |error|^a, times a
factor for the ratio rho of the current policy's to the behaviour policy's probability, times a factor for the age:

    priority = (|error| + eps)^a * min(1, rho)^b * (1 + s)^-c     s: updates since the weights that acted were published

rho is that of the epsilon-greedy policies, both with the epsilon of the step; actors write the behaviour's probability
into each row. Every actor's ring has an equal part of the capacity, so the slow actor's part reaches ten times as far
back: that is where off-policy samples come from. With `SMALL` capacity the fast actors' parts wrap; with the preset's
none does. The factors are put on the errors that the core returns, so new rows have none until they are first sampled.

    python -m benchmarks.learning.priority_decay --seeds 10
"""

from __future__ import annotations

import tempfile
import warnings
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from asyncrl import DQN
from asyncrl.acting.policies import QPolicy
from asyncrl.interfaces import EnvSpec, FieldSpec
from benchmarks.harness import runs
from benchmarks.harness.report import Report
from benchmarks.harness.slow_envs import DelayedFactory

ENV, TARGET, LIMIT_SECONDS, LIMIT_STEPS = "CartPole-v1", 475.0, 240.0, 40_000
ACTORS, DELAY_SECONDS, SLOW_FACTOR = 8, 4e-3, 10.0
SMALL, SAMPLES_PER_INSERT = 4_096, 8.0
EXPONENTS = {
    "uniform": None,
    "prioritized": (0.0, 0.0),
    "decay-0.25": (0.0, 0.25),
    "decay-1": (0.0, 1.0),
    "ratio-0.25": (0.25, 0.0),
    "ratio-1": (1.0, 0.0),
    "both": (0.25, 0.25),
}
"""(b, c) by item; None samples uniformly."""


class PolicyWithProbability(QPolicy):
    """Epsilon-greedy policy whose rows have the action's probability and epsilon."""

    def act(self, obs: Any, rng: np.random.Generator, total_steps: int) -> Any:
        """See `QPolicy`."""
        action, extras = super().act(obs, rng, total_steps)
        epsilon = self._rates
        probability = probabilities(action == self.greedy(obs), epsilon, self.layout.num_actions)
        return action, {**extras, "behaviour": np.stack((probability, epsilon), axis=1).astype(np.float32)}


def probabilities(greedy: Any, epsilon: Any, actions: int) -> Any:
    """Probabilities of actions by an epsilon-greedy policy; `greedy` says which of them are its greedy ones."""
    return epsilon / actions + np.where(greedy, 1 - epsilon, 0)


class WithFactors:
    """Wrapper of a core that puts min(1, rho)^b (1 + s)^-c on priorities."""

    def __init__(self, core: Any, exponents: tuple[float, float], alpha: float) -> None:
        self._core, (self._b, self._c) = core, (n / alpha for n in exponents)

    def update(self, batch: Any) -> Any:
        """Update, and put the factors on the errors."""
        result = self._core.update(batch)
        if self._c:
            result.priorities[:] *= (1.0 + batch.staleness.astype(np.float32)) ** -self._c
        if self._b:
            values = self._core.action_values(batch.obs)
            probability, epsilon = batch.extras["behaviour"].T
            now = probabilities(values.argmax(axis=1) == batch.action, epsilon, values.shape[1])
            result.priorities[:] *= np.minimum(1, now / probability) ** self._b
        return result

    def __getattr__(self, name: str) -> Any:
        return getattr(self._core, name)


class DQNWithFactors(DQN):
    """DQN with `WithFactors`; the exponents are a class attribute, as options would be written to files."""

    exponents: ClassVar[tuple[float, float]] = (0.0, 0.0)

    def extra_fields(self, spec: EnvSpec) -> tuple[FieldSpec, ...]:
        """The action's probability and epsilon."""
        return (FieldSpec("behaviour", (2,), "float32"),)

    def make_policy(self, spec: EnvSpec) -> QPolicy:
        """The policy that gives them."""
        own = super().make_policy(spec)
        return PolicyWithProbability(self.stacked_spec(spec), own.layout, own.epsilon, own.support)

    def make_updater(self, spec: EnvSpec, device: str, seed: int) -> Any:
        """Wrap the core of DQN."""
        return WithFactors(super().make_updater(spec, device, seed), self.exponents, self.alpha)


def main() -> None:
    """Run everything and write results/priority_decay.json."""
    parser = runs.flags(__doc__, [*EXPONENTS], seeds=10)
    parser.add_argument("--capacity", type=int, default=SMALL, help="of the replay")
    parsed, _ = runs.parse(parser, "priority_decay", [*EXPONENTS])
    # More actors than cores are intended here, as they sleep.
    warnings.filterwarnings("ignore", message=r"\[ASYNC021\]")
    report, rows = Report(parsed.name), []
    report.note(
        "settings",
        f"{ACTORS} actors of one environment that sleeps {DELAY_SECONDS} s a step, one {SLOW_FACTOR:g} times as long; "
        f"replay of {parsed.capacity:,} steps; {SAMPLES_PER_INSERT:g} samples per insert; relaxed; at most "
        f"{LIMIT_STEPS:,} steps",
    )
    found: dict[str, list[runs.Summary]] = {item: [] for item in parsed.items}
    for seed in range(parsed.seeds):
        for item in parsed.items:
            found[item].append(_run(EXPONENTS[item], seed, parsed.capacity))
            print(item, seed, runs.line(found[item][-1]), flush=True)
    for item, summaries in found.items():
        reached = [runs.reached(s, "greedy") for s in summaries]
        steps = [
            float(s["steps_to_target"]) if r else LIMIT_STEPS for s, r in zip(summaries, reached, strict=True)
        ]
        report.note(f"{item}_reached", f"{sum(reached)} of {len(reached)}")
        median = report.add(f"{item}_steps_to_target", steps, "steps")
        p95 = report.add(f"{item}_staleness_p95", [s["staleness"]["p95"] for s in summaries], "updates")
        rows.append([item, f"{sum(reached)} of {len(reached)}", f"{median:,.0f}", f"{max(steps):,.0f}", p95])
    report.add_table(["priorities", "solved", "median steps", "worst", "staleness p95"], rows)
    report.write()


def _run(exponents: tuple[float, float] | None, seed: int, capacity: int) -> runs.Summary:
    """One run to the target, or to the limits."""
    DQNWithFactors.exponents = exponents or (0.0, 0.0)
    algorithm = DQNWithFactors.preset(
        ENV,
        discipline="relaxed",
        prioritized=exponents is not None,
        replay_capacity=capacity,
        samples_per_insert=SAMPLES_PER_INSERT,
    )
    options = {**DQNWithFactors.preset_options(ENV), "num_actors": ACTORS, "envs_per_actor": 1}
    with tempfile.TemporaryDirectory() as folder:
        claim = str(Path(folder, "slow"))
        factory = DelayedFactory(ENV, DELAY_SECONDS, slow_factor=SLOW_FACTOR, claim=claim)
        summary = runs.learn(
            factory, algorithm, seed, "greedy", TARGET, LIMIT_SECONDS, total_steps=LIMIT_STEPS, **options
        )
        if not Path(folder, "slow").exists():
            raise RuntimeError("no actor claimed to be the slow one")
        return summary


if __name__ == "__main__":
    main()
