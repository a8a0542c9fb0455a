"""Runs until a target, on either clock, in new processes or in this one, and their figures.

    greedy      a mean of the target over 100 greedy episodes, played after a first hint; training waits meanwhile
    training    a mean of the target over the last 100 training episodes of all actors: TianJi's and XingTian's metric

A run has one clock, because it stops at its target. Times are `train_seconds` of the stop: from the first environment
step on, without pauses for evaluations and without start-up, which is reported separately. A run that misses its target
counts with its time limit; `<key>_reached` is the number of runs that reached it.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness.report import FOLDER, Report, Side, usable_cores

# Set here too, before torch is imported, as some scripts run the trainer in their own process.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

CLOCKS = ("greedy", "training")
STOPPED_BY = {"greedy": "target_return", "training": "target_training_return"}
START_SECONDS = 4.0
"""Time of a process in addition to its training, for the printed estimate."""

Summary = dict[str, Any]


def flags(description: str | None, items: Sequence[str], seeds: int = 5) -> argparse.ArgumentParser:
    """Parser of the flags that the scripts share, for `parse`."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=seeds, help="seeds 0 .. N-1")
    parser.add_argument(
        "--quick", action="store_true", help="one seed: whether it runs, not what it measures"
    )
    parser.add_argument("--only", metavar="ITEM", help=f"comma-separated items out of: {', '.join(items)}")
    return parser


def measuring_flags(description: str | None, items: Sequence[str], seconds: float) -> argparse.ArgumentParser:
    """`flags` of a script that calls itself for every measurement, see `measured`; `seconds` each by default."""
    parser = flags(description, items)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=seconds, help="of each measurement")
    parser.add_argument("--measure", help="used by the script itself: one measurement, printed as JSON")
    return parser


def measured(script: str, what: str, seconds: float, pin: Sequence[str] = ()) -> Any:
    """Result of `--measure what` of `benchmarks.<script>` in a new process, of which it is the last line.

    Args:
        script: module under `benchmarks`.
        what: argument of the script's own flag.
        seconds: duration of the measurement.
        pin: words before the command line, such as those of taskset.
    """
    line = [*pin, sys.executable, "-m", f"benchmarks.{script}", "--measure", what, "--seconds", str(seconds)]
    limit = 600 + 10 * seconds
    done = subprocess.run(line, cwd=FOLDER.parent, check=True, stdout=subprocess.PIPE, timeout=limit)
    return json.loads(done.stdout.splitlines()[-1])


def parse(
    parser: argparse.ArgumentParser, name: str, items: Sequence[str]
) -> tuple[argparse.Namespace, list[str]]:
    """Parse the flags, set the chosen `items` and the `name` of the result file; returns them and unknown arguments.

    The result file of some items has their names in its own, and that of a quick run "quick", so that neither
    overwrites the complete result.
    """
    parsed, rest = parser.parse_known_args()
    parsed.items = parsed.only.split(",") if parsed.only else list(items)
    unknown = set(parsed.items) - set(items)
    if unknown:
        parser.error(f"--only names no item: {', '.join(sorted(unknown))}; there are {', '.join(items)}")
    parsed.name = name if parsed.items == list(items) else "_".join([name, *parsed.items])
    if parsed.quick:
        parsed.seeds = 1
        parsed.name += "_quick"
    return parsed, rest


def announce(runs: int, seconds: float) -> None:
    """Print the maximum duration of `runs` runs with at most `seconds` of training each."""
    most = runs * (seconds + START_SECONDS)
    print(f"{runs} runs of at most {seconds:g} s, {most / 60:.1f} min at most", flush=True)


def command(
    env: str, algo: str, seed: int, clock: str, target: float, limit: float, options: Sequence[str] = ()
) -> Summary:
    """`summary.json` of one run of the command line in a new process; `process_seconds` is its whole duration."""
    flag = "--target-return" if clock == "greedy" else "--target-training-return"
    rules = [flag, str(target), "--max-seconds", str(limit)]
    if clock == "training":
        rules += ["--eval-interval-steps", "none"]
    return cli(env, algo, seed, [*rules, *options], patience_seconds=limit + 120)


def cli(env: str, algo: str, seed: int, options: Sequence[str], patience_seconds: float) -> Summary:
    """The summary of `finished_run`."""
    return finished_run(env, algo, seed, options, patience_seconds)[0]


def finished_run(
    env: str, algo: str, seed: int, options: Sequence[str], patience_seconds: float | None = None
) -> tuple[Summary, list[dict[str, Any]]]:
    """Run `asyncrl train` with these options in a new process without a page.

    Returns:
        Its `summary.json`, with its `means`, `process_seconds`, and `cpu_seconds` of all its processes; and the lines
        of its `metrics.jsonl`.
    """
    with tempfile.TemporaryDirectory() as folder:
        line = [sys.executable, "-m", "asyncrl", "train", env, "--algo", algo, "--seed", str(seed)]
        line += ["--http", "off", "--run-dir", f"{folder}/run", *options]
        started, used = time.perf_counter(), _cpu_seconds_of_children()
        subprocess.run(line, check=True, stdout=subprocess.DEVNULL, timeout=patience_seconds)
        seconds, cpu = time.perf_counter() - started, _cpu_seconds_of_children() - used
        summary: Summary = json.loads(Path(folder, "run", "summary.json").read_text())
        config = tomllib.loads(Path(folder, "run", "config.toml").read_text())["trainer"]
        metrics = Path(folder, "run", "metrics.jsonl")
        lines = metrics.read_text().splitlines() if metrics.exists() else []
        resources = {**means(config), "process_seconds": seconds, "cpu_seconds": cpu}
        return {**summary, **resources}, [json.loads(text) for text in lines]


def evaluations(lines: Sequence[Mapping[str, Any]]) -> list[tuple[int, float]]:
    """Steps and mean return of every evaluation in the lines of a `metrics.jsonl`."""
    return [
        (line["eval/total_timesteps"], line["eval/mean_reward"])
        for line in lines
        if "eval/mean_reward" in line
    ]


def _cpu_seconds_of_children() -> float:
    """CPU seconds of all processes that this one has waited for, and of their own children."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def means(config: Mapping[str, Any]) -> Summary:
    """Resources of one of our runs: `cores` that it may use, and `environments` of all its actors.

    `config` has the options of the run; without `num_actors` there is one actor per core but one
    (`TrainerConfig.actors`).
    """
    cores = usable_cores()
    actors = config.get("num_actors") or max(1, cores - 1)
    return {"cores": cores, "environments": actors * config["envs_per_actor"]}


def peer(script: str, options: Sequence[str], python: str, patience_seconds: float = 600) -> Summary:
    """Last line that `benchmarks.peers.<script>` prints, parsed; run by `python` in a new process.

    Raises:
        ValueError: it lacks the versions, the number of cores or the number of environments.
    """
    line = [python, "-m", f"benchmarks.peers.{script}", *options]
    done = subprocess.run(
        line, cwd=FOLDER.parent, check=True, stdout=subprocess.PIPE, text=True, timeout=patience_seconds
    )
    result: Summary = json.loads(done.stdout.splitlines()[-1])
    if missing := [name for name in ("versions", "cores", "environments") if not result.get(name)]:
        raise ValueError(f"benchmarks.peers.{script} must print {', '.join(missing)}, got {sorted(result)}")
    return result


def learn(
    env: Any, algorithm: Any, seed: int, clock: str, target: float, limit: float, **options: Any
) -> Summary:
    """Summary of one run in this process, for environments that a command line cannot name."""
    from asyncrl import Trainer

    rules = {"target_return": target} if clock == "greedy" else {"target_training_return": target}
    if clock == "training":
        options["eval_interval_steps"] = None
    settings = {"http": "off", **options, **rules}
    trainer = Trainer(env, algorithm, seed=seed, **settings)
    return {**trainer.learn(max_seconds=limit).summary, **means(vars(trainer.config))}


def when_updated(trainer: Any, updates: int) -> Any:
    """Wait until a run has made this many updates; returns its first snapshot from then on."""
    while (snapshot := trainer.snapshot()) is None or snapshot.updates < updates:
        if trainer.done:
            raise RuntimeError("the run ended before it was measured")
        time.sleep(0.02)
    return snapshot


def throughput(env: Any, algorithm: Any, seed: int, seconds: float, **options: Any) -> float:
    """Environment steps/s of a run in this process, from two snapshots after its first update."""
    from asyncrl import Trainer

    settings = {
        "http": "off",
        "report_interval_seconds": 0.1,
        **options,
        "eval_interval_steps": None,
    }
    with Trainer(env, algorithm, seed=seed, **settings) as trainer:
        trainer.start()
        first = when_updated(trainer, 1)
        time.sleep(seconds)
        last = trainer.snapshot()
        assert last is not None
        return float((last.env_steps - first.env_steps) / (last.wall_seconds - first.wall_seconds))


def reached(summary: Summary, clock: str) -> bool:
    """Whether the run reached its target."""
    return bool(summary["stop_reason"] == STOPPED_BY[clock])


def seconds_to_target(summary: Summary, clock: str, limit: float) -> float:
    """Training seconds of a run that reached its target, else its limit."""
    return float(summary["train_seconds"]) if reached(summary, clock) else limit


def add_clock(
    report: Report, key: str, runs: Sequence[Summary], clock: str, limit: float, goal: str | None = None
) -> float:
    """Add figures of runs of one clock under `<key>_<clock>_...`; returns the median seconds to the target."""
    name = f"{key}_{clock}"
    report.note(f"{name}_reached", f"{sum(reached(r, clock) for r in runs)} of {len(runs)}")
    sides = {"asyncrl": Side.of(runs)}
    seconds = [seconds_to_target(r, clock, limit) for r in runs]
    median = report.add(f"{name}_train_seconds", seconds, "s", goal, sides)
    for what, unit in (("startup_seconds", "s"), ("env_steps", "steps"), ("env_steps_per_second", "steps/s")):
        report.add(f"{name}_{what}", [r[what] for r in runs], unit, sides=sides)
    for label, value in (("greedy", "eval"), ("training", "episodes")):
        returns = [r["eval"]["return_mean"] if value == "eval" else r["episodes_return_mean"] for r in runs]
        if None not in returns:
            report.add(f"{name}_final_{label}_return", returns, "", sides=sides)
    return median


def line(summary: Summary) -> str:
    """One run in words."""
    greedy = summary["eval"]["return_mean"]
    training = summary["episodes_return_mean"]
    return (
        f"{summary['stop_reason']}, train {summary['train_seconds']:.2f} s, "
        f"start-up {summary['startup_seconds']:.2f} s, {summary['env_steps']:,} steps, "
        f"{summary['updates']:,} updates, greedy {_word(greedy)}, training {_word(training)}"
    )


def _word(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"
