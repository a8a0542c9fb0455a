"""Cost of rings and policy for an actor: steps/s of two actors of a run, and of two bare loops over the environments.

The learner is limited to one update per 1,280 steps, so that actors are the bottleneck. The bare loops are two
processes that step the same environments with random actions and reset them. Bare loops and runs alternate.

    python -m benchmarks.systems.actors
"""

from __future__ import annotations

import subprocess
import sys
import time
from functools import partial

from benchmarks.harness.report import Report, by_turns, script_parser
from benchmarks.harness.runs import when_updated

ENVIRONMENTS = {"CartPole-v1": 0.65, "LunarLander-v3": 0.85}
ACTORS, ENVS = 2, 16

RAW = """
import sys, time
import gymnasium, numpy as np
name, envs, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
streams = [gymnasium.make(name, disable_env_checker=True) for _ in range(envs)]
for i, env in enumerate(streams):
    env.reset(seed=i)
actions = np.random.default_rng(0).integers(0, streams[0].action_space.n, 4096).tolist()
sys.stdout.write("ready\\n"); sys.stdout.flush(); sys.stdin.readline()
steps, end = 0, time.perf_counter() + seconds
while time.perf_counter() < end:
    for env in streams:
        _, _, terminated, truncated, _ = env.step(actions[steps & 4095])
        steps += 1
        if terminated or truncated:
            env.reset()
print(steps / seconds)
"""


def raw_rate(name: str, seconds: float) -> float:
    """Steps/s of two bare loops that run at the same time."""
    command = [sys.executable, "-c", RAW, name, str(ENVS), str(seconds)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    loops = [subprocess.Popen(command, **pipes) for _ in range(ACTORS)]  # type: ignore[call-overload]
    for loop in loops:
        loop.stdout.readline()
    for loop in loops:
        loop.stdin.write("go\n")
        loop.stdin.flush()
    return sum(float(loop.communicate()[0]) for loop in loops)


def run_rate(name: str, seconds: float) -> float:
    """Steps/s of two actors of a run, from two snapshots of its counters."""
    from asyncrl import DQN, Trainer

    algorithm = DQN(samples_per_insert=0.05, learning_starts=1_000, replay_capacity=1 << 17)
    with Trainer(
        name, algorithm, num_actors=ACTORS, envs_per_actor=ENVS, http="off", eval_interval_steps=None
    ) as trainer:
        trainer.start()
        first = when_updated(trainer, 2)
        time.sleep(seconds)
        last = trainer.snapshot()
        assert last is not None
        return float((last.env_steps - first.env_steps) / (last.wall_seconds - first.wall_seconds))


RATES = {"raw": raw_rate, "actor": run_rate}


def main() -> None:
    """Measure and write results/actors.json."""
    parser = script_parser(__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0)
    arguments = parser.parse_args()
    report = Report("actors")
    report.note("settings", f"{ACTORS} actors of {ENVS} environments, {arguments.seconds} s a repeat")
    for name, goal in ENVIRONMENTS.items():
        measures = {way: partial(rate, name, arguments.seconds) for way, rate in RATES.items()}
        rates = by_turns(arguments.repeats, measures)
        for way, values in rates.items():
            report.add(f"{name}_{way}_steps_per_second", values, "steps/s")
        report.add_ratio(f"{name}_actor_to_raw", rates["actor"], rates["raw"], f"at least {goal}")
    report.write()


if __name__ == "__main__":
    main()
