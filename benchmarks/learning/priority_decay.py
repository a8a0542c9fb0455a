"""Whether priorities should decay with staleness: DQN on CartPole-v1 where one of eight actors is ten times slower.

DistRL (arXiv 2410.14803) draws trajectories by priority = |error|^a, times a factor for the ratio rho of the current
policy's to the behaviour policy's probability, times a factor for the age. Replay here stores no probability of the
behaviour, so that the last factor is what can be tried:

    priority = (|error| + eps)^a * (1 + s)^-c       s: updates since the weights that acted were published

Every actor's ring has an equal part of the capacity, so the slow actor's part reaches ten times as far back: that is
where off-policy samples come from. With `SMALL` capacity the fast actors' parts wrap; with the preset's none does. The
factor is put on the errors that the core returns, so new rows have none until they are first sampled.

    python -m benchmarks.learning.priority_decay --seeds 10
"""

from __future__ import annotations

import tempfile
import warnings
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from asyncrl import DQN
from asyncrl.interfaces import EnvSpec
from benchmarks.harness import runs
from benchmarks.harness.report import Report
from benchmarks.harness.slow_envs import DelayedFactory

ENV, TARGET, LIMIT_SECONDS, LIMIT_STEPS = "CartPole-v1", 475.0, 240.0, 40_000
ACTORS, DELAY_SECONDS, SLOW_FACTOR = 8, 4e-3, 10.0
SMALL, SAMPLES_PER_INSERT = 4_096, 8.0
RATES = {"uniform": None, "prioritized": 0.0, "decay-0.25": 0.25, "decay-1": 1.0}
"""c by item; None samples uniformly."""


class Decayed:
    """Wrapper of a core whose errors decay with staleness, so that priorities decay by (1 + s)^-rate."""

    def __init__(self, core: Any, rate: float, alpha: float) -> None:
        self._core, self._exponent = core, -rate / alpha

    def update(self, batch: Any) -> Any:
        """Update, and put the factor on the errors."""
        result = self._core.update(batch)
        if self._exponent:
            result.priorities[:] *= (1.0 + batch.staleness.astype(np.float32)) ** self._exponent
        return result

    def __getattr__(self, name: str) -> Any:
        return getattr(self._core, name)


class DecayedDQN(DQN):
    """DQN with a `Decayed` core; the rate is a class attribute, as options would be written to files."""

    rate: ClassVar[float] = 0.0

    def make_updater(self, spec: EnvSpec, device: str, seed: int) -> Any:
        """Wrap the core of DQN."""
        return Decayed(super().make_updater(spec, device, seed), self.rate, self.alpha)


def main() -> None:
    """Run everything and write results/priority_decay.json."""
    parser = runs.flags(__doc__, [*RATES], seeds=10)
    parser.add_argument("--capacity", type=int, default=SMALL, help="of the replay")
    parsed, _ = runs.parse(parser, "priority_decay", [*RATES])
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
            found[item].append(_run(RATES[item], seed, parsed.capacity))
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


def _run(rate: float | None, seed: int, capacity: int) -> runs.Summary:
    """One run to the target, or to the limits."""
    DecayedDQN.rate = rate or 0.0
    algorithm = DecayedDQN.preset(
        ENV,
        discipline="relaxed",
        prioritized=rate is not None,
        replay_capacity=capacity,
        samples_per_insert=SAMPLES_PER_INSERT,
    )
    options = {**DecayedDQN.preset_options(ENV), "num_actors": ACTORS, "envs_per_actor": 1}
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
