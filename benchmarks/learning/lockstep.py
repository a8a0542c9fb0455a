"""Cost of lockstep: environment steps/s and updates/s of replay training, lockstep against relaxed.

    cartpole        DQN's preset for CartPole-v1
    lunarlander     DQN's preset for LunarLander-v3
    halfcheetah     SAC's preset for HalfCheetah-v5 (`pip install gymnasium[mujoco]`)

Each runs at its preset's samples per insert, where the learner is the bottleneck, and at 1, where the actors are more
likely to be. A run makes a fixed number of steps; the disciplines take turns, in new processes. Rates are over
`train_seconds`: from the first step on, without start-up and evaluation. `learning_starts` is 1,000 everywhere, so that
steps without updates are a small part.

    python -m benchmarks.learning.lockstep
    python -m benchmarks.learning.lockstep --only cartpole --seeds 3
"""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.harness import runs
from benchmarks.harness.report import FOLDER, Report

DISCIPLINES = ("relaxed", "lockstep")
ONE = "1"
RATES = {"steps_per_second": "env_steps", "updates_per_second": "updates"}


@dataclass(frozen=True)
class Task:
    """Environment, algorithm, and numbers of steps at the preset's samples per insert and at 1."""

    env: str
    algo: str
    steps: int
    steps_at_one: int


TASKS = {
    "cartpole": Task("CartPole-v1", "dqn", 20_000, 200_000),
    "lunarlander": Task("LunarLander-v3", "dqn", 40_000, 200_000),
    "halfcheetah": Task("HalfCheetah-v5", "sac", 8_000, 30_000),
}


def run(task: Task, pace: str, discipline: str, seed: int, steps: int, options: list[str]) -> runs.Summary:
    """Summary of one run of `steps` steps; `pace` is `preset` or samples per insert."""
    flags = ["--total-steps", str(steps), "--eval-interval-steps", "none"]
    flags += [f"--{task.algo}.discipline", discipline, f"--{task.algo}.learning-starts", "1000"]
    if pace != "preset":
        flags += [f"--{task.algo}.samples-per-insert", pace]
    return runs.cli(task.env, task.algo, seed, [*flags, *options], patience_seconds=1_800)


def compare(report: Report, item: str, seeds: int, share: float, options: list[str]) -> list[list[object]]:
    """Run both disciplines at both paces; returns one row of the table per pace."""
    task, rows = TASKS[item], []
    for pace in ("preset", ONE):
        steps = max(1, round(share * (task.steps if pace == "preset" else task.steps_at_one)))
        results: dict[str, list[runs.Summary]] = {discipline: [] for discipline in DISCIPLINES}
        for seed in range(seeds):
            turn = DISCIPLINES if seed % 2 == 0 else DISCIPLINES[::-1]
            for discipline in turn:
                summary = run(task, pace, discipline, seed, steps, options)
                results[discipline].append(summary)
                print(f"{item} {pace} {discipline} seed {seed}: {runs.line(summary)}", flush=True)
        key = f"{item}_{pace}"
        row: list[object] = [item, results["relaxed"][0]["samples_per_insert"]["target"], steps]
        for name, count in RATES.items():
            rates = {d: [s[count] / s["train_seconds"] for s in results[d]] for d in DISCIPLINES}
            row += [report.add(f"{key}_{d}_{name}", rates[d], "1/s") for d in DISCIPLINES]
            row.append(
                report.add_ratio(f"{key}_lockstep_to_relaxed_{name}", rates["lockstep"], rates["relaxed"])
            )
        for discipline in DISCIPLINES:
            for name in ("learner_wait_fraction", "actor_wait_fraction"):
                report.add(f"{key}_{discipline}_{name}", [s[name] for s in results[discipline]], "")
        rows.append(row)
    return rows


def main() -> None:
    """Run everything; write results/lockstep.json and results/lockstep.md."""
    parser = runs.flags(__doc__, tuple(TASKS), seeds=5)
    parser.add_argument("--share", type=float, default=1.0, help="of the steps of every run")
    parser.add_argument("--trial", action="store_true", help="write no result file")
    parsed, options = runs.parse(parser, "lockstep", tuple(TASKS))
    report, rows = Report(parsed.name), []
    report.note("tasks", {item: vars(TASKS[item]) for item in parsed.items})
    for item in parsed.items:
        rows += compare(report, item, parsed.seeds, parsed.share, options)
    headings = ["preset", "samples per insert", "steps"]
    headings += [
        f"{d} {name}" for name in ("steps/s", "updates/s") for d in (*DISCIPLINES, "lockstep to relaxed")
    ]
    table = report.add_table(headings, rows)
    if not parsed.trial:
        report.write()
        (FOLDER / "results" / f"{parsed.name}.md").write_text(table + "\n")


if __name__ == "__main__":
    main()
