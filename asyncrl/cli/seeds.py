"""Training of `asyncrl train --seeds`: a run per seed, side by side, and one summary. Imports no torch."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from asyncrl.cli.interrupts import EXIT_CODE, Interrupts
from asyncrl.cli.output import print_error, without_waiting
from asyncrl.cli.run_name import remove_if_never_trained
from asyncrl.cli.runs_shown import RunsShown
from asyncrl.cli.training import keep_elsewhere
from asyncrl.config import TrainerConfig, usable_cores
from asyncrl.errors import AsyncRLError, ResourceError, StoppedWhileStarting, describe_error
from asyncrl.protocols import Algorithm
from asyncrl.show.runs_view import RunRow
from asyncrl.trainer.run_pool import Ended, RunPool, runs_at_once
from asyncrl.trainer.seeds import SeedResults, collected, jobs, train_all
from asyncrl.trainer.trainer import Trainer


def train_seeds(
    config: TrainerConfig,
    algorithm: Algorithm,
    folders: Mapping[int, Path | None],
    at_once: int | None,
    interrupts: Interrupts,
) -> int:
    """Train all seeds, show them and print the summary; returns the exit code.

    Args:
        config: all options of the runs, but the seed and the directory of each.
        algorithm: its record.
        folders: directory of each seed's run, None to keep nothing.
        at_once: runs at a time, None for as many as there are cores for.
        interrupts: signals, which stop all runs.

    A run that fails ends alone, and the exit code is that of the first error. Raises an error that the caller has
    caused, which all runs would have, and the first error if no run has a result, unless a signal has stopped them.
    """
    trainer = Trainer.from_config(config, algorithm)
    at_once = min(runs_at_once(config, at_once), len(folders))
    ends: dict[int, Ended] = {}
    what = f"{config.algo} {config.env}  {len(folders)} seeds, {pace(config, at_once)}"

    def title() -> str:
        return f"{what}  {len(ends)} done" if shown.live else what

    with RunPool() as pool, RunsShown(title, interrupts) as shown:
        interrupts.run = pool
        shown.rows = {seed: RunRow(f"seed {seed}") for seed in folders}
        for event in train_all(pool, jobs(trainer, folders), at_once):
            if isinstance(event, Ended):
                ends[event.key] = event
            shown.take(event)
    results = collected(list(folders), ends, interrupted=bool(interrupts.count))
    for seed, error in results.errors.items():
        if isinstance(error, StoppedWhileStarting) and (folder := folders[seed]) is not None:
            remove_if_never_trained(folder)
    kept = [keep_elsewhere(result, _file_name(result.run_dir)) for result in results.results.values()]
    text = "\n".join([summary(results, folders), *filter(None, kept)])
    without_waiting("stdout", lambda: print(text, flush=True))
    return _exit_code(results, interrupts)


def _file_name(run_dir: Path | None) -> str:
    """Name for the policy of a seed's run: `runs/x/s3` is `x-s3`."""
    if run_dir is None:
        return ""
    folder = f"{run_dir.parent.name}-" if re.fullmatch(r"s\d+", run_dir.name) else ""
    return folder + run_dir.name


def pace(config: TrainerConfig, at_once: int) -> str:
    """Number of runs at a time, and what decides it: `1 at a time (2 cores, 2 processes a run)`."""
    cores, processes = usable_cores(), config.groups * (config.actors + 1)
    return f"{at_once} at a time ({cores} core{'s' * (cores > 1)}, {processes} processes a run)"


def summary(results: SeedResults, folders: Mapping[int, Path | None]) -> str:
    """Closing lines: a line per seed, statistics of the final returns, and suggested commands."""
    kept = {
        seed: folder
        for seed, folder in folders.items()
        if folder is not None
        and not isinstance(results.errors.get(seed), StoppedWhileStarting)
        and (folder / "config.toml").exists()
    }
    lines = [*results.rows(), results.statistics()]
    if not kept:
        why = "" if any(folders.values()) else " (they are kept without --run-dir none)"
        return "\n".join([*lines, f"files         none{why}"])
    paths = list(kept.values())
    lines += [f"files         {_together(paths)}", f"next          asyncrl plot {_together(paths)}"]
    lines.append(f"{'':<13} asyncrl ls {shlex.quote(str(paths[0].parent))} --groups")
    ended = {seed for seed, result in results.results.items() if result.summary["state"] == "finished"}
    to_resume = [
        kept[seed] for seed in kept if seed not in ended and (kept[seed] / "checkpoints" / "latest").exists()
    ]
    lines += [f"{'':<13} asyncrl resume {shlex.quote(str(folder))}" for folder in to_resume]
    return "\n".join(lines)


def _together(folders: Sequence[Path]) -> str:
    """Folders of seeds as one argument of a shell: `runs/CartPole-v1-dqn-s{0,1}-20260101-120000`."""
    names = [re.split(r"(?<=-s)(\d+)(?=-)|(?<=^s)(\d+)$", folder.name) for folder in folders]
    alike = {(folder.parent, name[0], name[-1]) for folder, name in zip(folders, names, strict=True)}
    if len(names) == 1 or len(alike) > 1 or any(len(name) != 4 for name in names):
        return " ".join(shlex.quote(str(folder)) for folder in folders)
    (head, _, _, tail), parent = names[0], folders[0].parent
    seeds = ",".join(one or other for _, one, other, _ in names)
    return f"{shlex.quote(f'{parent}/{head}')}{{{seeds}}}{tail and shlex.quote(tail)}"


def _exit_code(results: SeedResults, interrupts: Interrupts) -> int:
    """Exit code, 130 if a signal has ended a run, also one to the run's process; prints what has failed."""
    failed = {
        seed: error for seed, error in results.errors.items() if not isinstance(error, StoppedWhileStarting)
    }
    for seed, error in failed.items():
        print_error(f"seed {seed}: {describe_error(error)}")
    if interrupts.count:
        return EXIT_CODE
    for error in failed.values():
        return error.exit_code if isinstance(error, AsyncRLError) else 1
    unsaved = [seed for seed, result in results.results.items() if result.unsaved]
    for seed in unsaved:
        print_error(f"seed {seed}: the last checkpoint could not be written: {results.results[seed].unsaved}")
    if unsaved:
        return ResourceError.exit_code
    by_signal = len(results.errors) > 0 or any(
        result.stop_reason == "interrupted" for result in results.results.values()
    )
    return EXIT_CODE if by_signal else 0
