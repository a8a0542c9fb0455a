"""Updates/s of a run while the program that started it computes in Python, as in another cell of a notebook.

    python -m benchmarks.systems.busy_caller [--repeats 5] [--switch-seconds S]

The run's threads and the program share one interpreter. The main thread sleeps and counts by turns, for three seconds
each; the ratio is that of neighbouring turns. `--switch-seconds` sets another switch interval of the interpreter, with
timed waits as the kernel has them by default, to show what the package's choice gains.
"""

from __future__ import annotations

import time
from typing import Any

from asyncrl import DQN, PPO, SAC, Trainer, timer_slack
from asyncrl.run import switching
from benchmarks.harness.report import Report, script_parser
from benchmarks.harness.runs import when_updated

RUNS: dict[str, tuple[str, Any]] = {
    "dqn": ("CartPole-v1", DQN(learning_rate=1e-4)),
    "ppo": ("CartPole-v1", PPO()),
    "sac_128": ("Pendulum-v1", SAC()),
    "sac_256": ("Pendulum-v1", SAC(hidden_sizes=(256, 256), batch_size=256, samples_per_insert=256)),
}


def updates_per_second(trainer: Trainer, seconds: float, busy: bool) -> float:
    """Updates/s over a time in which this thread counts (`busy`) or sleeps."""
    before = trainer.snapshot()
    end = time.perf_counter() + seconds
    count = 0
    while busy and time.perf_counter() < end:
        for _ in range(1000):
            count += 1
    time.sleep(max(0.0, end - time.perf_counter()))
    after = trainer.snapshot()
    assert before is not None and after is not None
    return float((after.updates - before.updates) / (after.wall_seconds - before.wall_seconds))


def measure(name: str, repeats: int, report: Report, seconds: float = 3.0) -> None:
    """Measure one run."""
    env, algorithm = RUNS[name]
    with Trainer(
        env, algorithm, num_actors=1, envs_per_actor=8, http="off", eval_interval_steps=None
    ) as trainer:
        trainer.start()
        when_updated(trainer, 200)
        time.sleep(1.0)
        rates: dict[bool, list[float]] = {False: [], True: []}
        for _ in range(repeats):
            for busy, values in rates.items():
                values.append(updates_per_second(trainer, seconds, busy))
    report.add(f"{name}_updates_per_second", rates[False], "updates/s")
    report.add(f"{name}_busy_updates_per_second", rates[True], "updates/s")
    report.add_ratio(f"{name}_busy_to_idle", rates[True], rates[False], "at least 0.9")


def main() -> None:
    """Measure and write results/busy_caller.json."""
    parser = script_parser(__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--switch-seconds", type=float, help="switch interval in place of the package's")
    arguments = parser.parse_args()
    report = Report("busy_caller" if arguments.switch_seconds is None else "busy_caller_other_interval")
    if arguments.switch_seconds is not None:
        switching.SWITCH_SECONDS = arguments.switch_seconds
        timer_slack._libc = None  # waits stay as they are
    report.note("switch_seconds", switching.SWITCH_SECONDS)
    for name in RUNS:
        measure(name, arguments.repeats, report)
    print(report.write())


if __name__ == "__main__":
    main()
