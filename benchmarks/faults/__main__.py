"""Fault injection: measures lost data, leftover resources and hangs.

    actors        SIGKILL of actors at random moments under DQN and PPO; every row and every batch is recomputed
    processes     a signal to the main process, the fork server or the evaluator of a run at a random moment
    checkpoints   mutated files, and saves that are killed or get a full disk at each of their calls
    environments  thirty faulty environments: what is detected, after how long, and what is left
    slopes        resources of long runs whose processes are killed: memory, descriptors, threads, the sum tree

    python -m benchmarks.faults actors --kills 10000
    python -m benchmarks.faults processes --kills 100
    python -m benchmarks.faults checkpoints --mutations 10000
    python -m benchmarks.faults environments
    python -m benchmarks.faults slopes --minutes 30

Every section writes results/faults_<section>.json, `processes` one file per target. The sizes above are those of the
goals; a small part of them takes a minute.
"""

from __future__ import annotations

import argparse

from benchmarks.faults.actors import run_storms
from benchmarks.faults.environments import CLASSES, run_one, table
from benchmarks.faults.files import broken_saves, mutations
from benchmarks.faults.processes import TARGETS, kill_runs
from benchmarks.faults.slopes import run_slopes
from benchmarks.harness.report import Report, script_parser


def actors(arguments: argparse.Namespace) -> None:
    """Repeated kills of actors under DQN and PPO."""
    run_storms(arguments.kills, arguments.minutes, arguments.envs, arguments.seed)


def processes(arguments: argparse.Namespace) -> None:
    """Signals to the processes of runs."""
    for target in arguments.targets:
        report = Report(f"faults_{target}")
        outcome = kill_runs(
            target, arguments.kills, arguments.minutes / len(arguments.targets), arguments.seed
        )
        report.note("exit codes", outcome.exit_codes)
        report.note("stories", outcome.stories[:10])
        for what in (
            "runs",
            "hit",
            "hangs",
            "orphans",
            "leaks",
            "checkpoints",
            "damaged",
            "locked",
            "untold",
        ):
            goal = None if what in ("runs", "hit", "checkpoints") else "0"
            report.add(f"{target}_{what}", [getattr(outcome, what)], "", goal)
        report.add(f"{target}_signal_to_end", outcome.seconds or [0.0], "s")
        report.write()


def checkpoints(arguments: argparse.Namespace) -> None:
    """Damaged files and interrupted saves."""
    report = Report("faults_checkpoints")
    report.note("mutations", arguments.mutations)
    for what, count in mutations(arguments.mutations, arguments.seed).items():
        goal = "0" if what in ("tracebacks", "garbage_accepted", "previous_lost") else None
        report.add(what, [count], "", goal)
    for what, count in broken_saves().items():
        goal = "0" if what.endswith(("lost", "left")) else None
        report.add(what, [count], "", goal)
    report.write()


def environments(arguments: argparse.Namespace) -> None:
    """Faulty environments."""
    report = Report("faults_environments")
    rows = []
    for name in arguments.names or CLASSES:
        rows.append(run_one(name))
        print(rows[-1], flush=True)
    head = ["fault", "codes", "exit code", "seconds", "updates", "weights saved", "state", "processes left"]
    report.add_table(head, table(rows))
    report.note("rows", rows)
    learned = [row for row in rows if row["updates"]]
    report.add("environments", [len(rows)], "")
    report.add("hangs", [sum(row["hangs"] for row in rows)], "", "0")
    report.add("processes_left", [sum(row["processes_left"] for row in rows)], "", "0")
    report.add("weights_lost", [sum(not row["weights"] for row in learned)], f"of {len(learned)}", "0")
    report.add("control_characters_shown", [sum(row["control_characters"] for row in rows)], "", "0")
    report.write()


def slopes(arguments: argparse.Namespace) -> None:
    """Resource growth of long runs."""
    run_slopes(arguments.minutes, arguments.algorithms, arguments.seconds_between_kills, arguments.seed)


def main() -> None:
    """Run one section."""
    parser = script_parser(__doc__)
    sections = parser.add_subparsers(required=True)
    section = sections.add_parser("actors", help=actors.__doc__)
    section.add_argument("--kills", type=int, default=40)
    section.add_argument("--minutes", type=float, default=1e6, help="end earlier, with fewer kills")
    section.add_argument("--envs", type=int, default=4)
    section.set_defaults(run=actors)
    section = sections.add_parser("processes", help=processes.__doc__)
    section.add_argument("--kills", type=int, default=2)
    section.add_argument("--minutes", type=float, default=1e6, help="end earlier, with fewer kills")
    section.add_argument("--targets", nargs="+", choices=TARGETS, default=TARGETS)
    section.set_defaults(run=processes)
    section = sections.add_parser("checkpoints", help=checkpoints.__doc__)
    section.add_argument("--mutations", type=int, default=1_000)
    section.set_defaults(run=checkpoints)
    section = sections.add_parser("environments", help=environments.__doc__)
    section.add_argument("names", nargs="*", metavar="NAME")
    section.set_defaults(run=environments)
    section = sections.add_parser("slopes", help=slopes.__doc__)
    section.add_argument("--minutes", type=float, default=2.0)
    section.add_argument("--algorithms", nargs="+", choices=("dqn", "ppo"), default=["dqn", "ppo"])
    section.add_argument("--seconds-between-kills", type=float, default=6.0)
    section.set_defaults(run=slopes)
    for section in sections.choices.values():
        section.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    arguments.run(arguments)


if __name__ == "__main__":
    main()
