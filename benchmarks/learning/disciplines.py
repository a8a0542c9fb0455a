"""Relaxed against lockstep and synchronous PPO with the same code and settings: time to target, final return, steps/s.

    cartpole, acrobot, lunarlander      each discipline to the target on both clocks, and once more for fixed steps
    uneven                              CartPole whose steps sleep for a time drawn per episode (exponential
                                        distribution): remote simulators, four actors of two environments
    busy                                CartPole whose steps keep the core busy: the environment is the bottleneck

Disciplines take turns seed by seed. `synchronous` stops the actors while the learner learns; `lockstep` overlaps the
two with a lag of exactly one update. The first three are new processes of the command line. The default leaves
lunarlander out, which takes about 10 minutes.

Limits on two cores: a batch needs A seconds of one core for its environments and L for its updates. With one actor,
synchronous takes A + L and relaxed max(A, L). With two, synchronous takes A / 2 + L and relaxed at least (A + L) / 2:
if actors keep all cores busy, only the learner's own time can be overlapped.

    python -m benchmarks.learning.disciplines
    python -m benchmarks.learning.disciplines --only lunarlander
"""

from __future__ import annotations

from dataclasses import dataclass

from asyncrl.learning.segment_balance import DISCIPLINES
from benchmarks.harness import runs
from benchmarks.harness.report import Report
from benchmarks.harness.slow_envs import DelayedFactory


@dataclass(frozen=True)
class Task:
    """Learning task: environment, target on both clocks, time limit of a run, steps of the run of fixed steps."""

    env: str
    target: float
    limit: float
    steps: int


TASKS = {
    "cartpole": Task("CartPole-v1", 475.0, 8.0, 50_000),
    "acrobot": Task("Acrobot-v1", -100.0, 12.0, 100_000),
    "lunarlander": Task("LunarLander-v3", 200.0, 30.0, 150_000),
}
DELAYS = {
    "uneven": DelayedFactory("CartPole-v1", 0.5e-3, uneven=True),
    "busy": DelayedFactory("CartPole-v1", 50e-6, busy=True),
}
ACTORS = {"cartpole": 2, "acrobot": 2, "lunarlander": 1, "uneven": 4, "busy": 1}
ENVS = {"uneven": 2, "busy": 16}
ITEMS = (*TASKS, *DELAYS)
DEFAULT = ("cartpole", "acrobot", *DELAYS)


def main() -> None:
    """Run everything and write results/disciplines.json."""
    parser = runs.flags(__doc__, ITEMS)
    parser.add_argument("--actors", type=int, help="of every item, in place of `ACTORS`")
    parser.add_argument("--seconds", type=float, default=3.0, help="measured of a run of a slow environment")
    parser.set_defaults(only=",".join(DEFAULT))
    parsed, options = runs.parse(parser, "disciplines", ITEMS)
    if parsed.items == list(DEFAULT):
        parsed.name = parsed.name.replace("_".join(["", *DEFAULT]), "")
    report = Report(parsed.name)
    rows = []
    for item in parsed.items:
        actors = parsed.actors or ACTORS[item]
        if item in TASKS:
            rows += to_target(report, item, parsed.seeds, ["--num-actors", str(actors), *options])
        else:
            slow(report, item, parsed.seeds, actors, parsed.seconds)
    report.add_table(
        ["env", "discipline", "greedy s", "training s", "fixed steps s", "final greedy return"], rows
    )
    report.write()


def to_target(report: Report, item: str, seeds: int, options: list[str]) -> list[list[object]]:
    """Run both clocks and fixed steps with every discipline; returns rows of the table."""
    task = TASKS[item]
    runs.announce(seeds * len(DISCIPLINES) * 3, task.limit)
    results: dict[tuple[str, str], list[runs.Summary]] = {}
    for seed in range(seeds):
        for discipline in DISCIPLINES:
            flags = ["--ppo.discipline", discipline, *options]
            for clock in (*runs.CLOCKS, "fixed"):
                if clock == "fixed":
                    rules = [
                        "--total-steps",
                        str(task.steps),
                        "--eval-interval-steps",
                        "none",
                    ]
                    rules += ["--max-seconds", str(2 * task.limit)]
                    summary = runs.cli(task.env, "ppo", seed, [*rules, *flags], 2 * task.limit + 120)
                else:
                    summary = runs.command(task.env, "ppo", seed, clock, task.target, task.limit, flags)
                results.setdefault((discipline, clock), []).append(summary)
                print(f"{item} {discipline} seed {seed} {clock}: {runs.line(summary)}", flush=True)
    rows: list[list[object]] = []
    for discipline in DISCIPLINES:
        key = f"{item}_{discipline}"
        row: list[object] = [item, discipline]
        for clock in runs.CLOCKS:
            row.append(runs.add_clock(report, key, results[discipline, clock], clock, task.limit))
        fixed = results[discipline, "fixed"]
        row.append(report.add(f"{key}_fixed_steps_train_seconds", [s["train_seconds"] for s in fixed], "s"))
        row.append(report.add(f"{key}_fixed_steps_return", [s["eval"]["return_mean"] for s in fixed], ""))
        report.add(f"{key}_learner_wait_fraction", [s["learner_wait_fraction"] for s in fixed], "")
        rows.append(row)
    for other in ("lockstep", "synchronous"):
        for clock in runs.CLOCKS:
            theirs, ours = (
                [runs.seconds_to_target(s, clock, task.limit) for s in results[d, clock]]
                for d in (other, "relaxed")
            )
            report.add_ratio(f"{item}_{other}_to_relaxed_{clock}", theirs, ours)
        theirs, ours = ([s["train_seconds"] for s in results[d, "fixed"]] for d in (other, "relaxed"))
        report.add_ratio(f"{item}_{other}_to_relaxed_fixed_steps", theirs, ours)
    return rows


def slow(report: Report, item: str, seeds: int, actors: int, seconds: float) -> None:
    """Measure steps/s of every discipline with an environment that is the bottleneck."""
    from asyncrl import PPO

    runs.announce(seeds * len(DISCIPLINES), seconds)
    report.note(
        f"{item}_settings",
        f"{DELAYS[item]}, {actors} actors of {ENVS[item]} environments, segments of 32 rows, 8 passes",
    )
    rates: dict[str, list[float]] = {discipline: [] for discipline in DISCIPLINES}
    for seed in range(seeds):
        for discipline in DISCIPLINES:
            algorithm = PPO(discipline=discipline, segment_length=32, epochs=8, queue_batches=2)
            rate = runs.throughput(
                DELAYS[item], algorithm, seed, seconds, num_actors=actors, envs_per_actor=ENVS[item]
            )
            rates[discipline].append(rate)
    for discipline in DISCIPLINES:
        report.add(f"{item}_{discipline}_steps_per_second", rates[discipline], "steps/s")
    for other in ("lockstep", "synchronous"):
        goal = "at least 1.5" if other == "synchronous" else None
        report.add_ratio(f"{item}_relaxed_to_{other}", rates["relaxed"], rates[other], goal)


if __name__ == "__main__":
    main()
