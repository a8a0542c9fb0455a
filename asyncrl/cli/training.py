"""Training of `asyncrl train`, after its arguments are parsed. The run imports torch, on a thread of its own."""

from __future__ import annotations

import importlib.util
import shlex
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from asyncrl.actors.forkserver import ForkServer
from asyncrl.cli.interrupts import EXIT_CODE, Interrupts
from asyncrl.cli.output import print_error, without_waiting
from asyncrl.config import TrainerConfig
from asyncrl.errors import ResourceError, error_text
from asyncrl.learning.clock import PROGRAM_START
from asyncrl.protocols import Algorithm
from asyncrl.run.result import TrainResult, shown_path
from asyncrl.run.summary import COMPLETE
from asyncrl.show.console import LEADS, RunConsole, discard
from asyncrl.show.metrics import EvaluationResult, Snapshot
from asyncrl.show.numbers import of_return, with_deviation
from asyncrl.storage.atomic_file import DISK_FAILS
from asyncrl.trainer.trainer import Trainer

NEXT = {"eval": "", "enjoy": "", "resume": " --steps +100k", "plot": ""}
"""Suggested commands after a run, with the text after the run's path."""
_PLACES: tuple[Callable[[], str | Path], ...] = (Path.cwd, tempfile.gettempdir)
"""Folders for the policy of a run whose last checkpoint could not be written."""
_MOST_NAMES = 100
NO_UPDATE = (
    "              nothing was learned: the run ended before its first update, for which it needs more steps"
)


def train(config: TrainerConfig, algorithm: Algorithm, server: ForkServer, interrupts: Interrupts) -> int:
    """Train, show progress and print the result; returns the exit code. Raises the error that ended the run."""
    return learn(Trainer.from_config(config, algorithm, server=server, started=PROGRAM_START), interrupts)


def learn(trainer: Trainer, interrupts: Interrupts) -> int:
    """Run a trainer with the terminal view, then close it; otherwise like `train`.

    The exit code is 4 if the run's last checkpoint could not be written, or what it prints, as on a full disk.
    """
    with trainer:
        interrupts.run = trainer
        console = RunConsole()
        if console.live:
            interrupts.notify = console.notify

        def show(snapshot: Snapshot) -> None:
            if LEADS:
                console.follow(snapshot, trainer.page_url)

        try:
            result = trainer.learn(on_snapshot=show, progress=False)
        except Exception:
            if trainer.result is not None:  # the run failed after it had learned
                console.close()
                _print_result(trainer.result, _best(trainer))
            raise
        finally:
            console.close()
        failed = _print_result(result, _best(trainer)) or console.error
    code = EXIT_CODE if interrupts.count else 0
    if isinstance(failed, OSError) and failed.errno in DISK_FAILS:
        print_error(f"the output cannot be written: {failed.strerror}")
        code = code or ResourceError.exit_code
    if result.run_dir is not None and result.unsaved:
        return ResourceError.exit_code
    return code


def _print_result(result: TrainResult, best: EvaluationResult | None) -> OSError | None:
    """Print the closing lines on rank 0, and keep a policy that is in no checkpoint; returns the error of the print.

    A closed terminal or pipe does not change the exit code, and one that nobody reads does not delay it.
    """
    if not LEADS:
        return None
    kept = keep_elsewhere(result)  # before anything is printed, which may fail
    text = "\n".join(filter(None, [describe_result(result, best), kept]))
    try:
        without_waiting("stdout", lambda: print(text, flush=True))
    except OSError as error:
        discard(sys.stdout)
        return error
    return None


def _best(trainer: Trainer) -> EvaluationResult | None:
    snapshot = trainer.snapshot()
    return snapshot.best_evaluation if snapshot is not None else None


def describe_result(result: TrainResult, best: EvaluationResult | None) -> str:
    """Closing lines of a run: stop reason, returns, cost, files, and suggested commands."""
    summary = result.summary
    greedy = summary["eval"]["deterministic"]
    lines = [
        f"stopped by    {result.stop_reason}",
        f"best return   {_return(best, greedy)}"
        + (f", after {best.env_steps:,} steps" if best is not None else ""),
        f"final return  {_return(result.evaluation, greedy)}",
        *_levels(result.evaluation),
        f"training      {summary['train_seconds']:.2f} s, {summary['env_steps']:,} steps, "
        f"{summary['updates']:,} updates",
        *(() if summary["updates"] else (NO_UPDATE,)),
        *_target_line(summary),
        f"start-up      {summary['startup_seconds']:.2f} s",
        *_files(result.run_dir, saved=not result.unsaved, reason=result.stop_reason),
    ]
    return "\n".join(lines)


def _levels(evaluation: EvaluationResult | None) -> list[str]:
    """Line with the return of each level of the evaluation, if it has some."""
    if evaluation is None or not evaluation.level_returns:
        return []
    return [
        f"levels        {', '.join(f'{name} {of_return(value)}' for name, value in evaluation.level_returns.items())}"
    ]


def _return(evaluation: EvaluationResult | None, deterministic: bool) -> str:
    if evaluation is None:
        return "not evaluated"
    mean, deviation = evaluation.return_mean, evaluation.return_std
    kind = "greedy " if deterministic else ""
    return f"{with_deviation(mean, deviation)} over {evaluation.episodes} {kind}episodes"


def _files(run_dir: Path | None, saved: bool, reason: str) -> list[str]:
    """Lines with the run's path and, if its last checkpoint was saved, the commands that take it.

    A run that no limit has ended goes on to its limits; of one that failed nothing else is suggested.
    """
    if run_dir is None:
        return ["files         none (they were kept without --run-dir none)"]
    run_dir = shown_path(run_dir)
    if not saved:
        return [f"files         {run_dir}"]
    path = shlex.quote(str(run_dir))
    names = ("resume",) if reason == "failed" else NEXT
    commands = [f"asyncrl {name} {path}{NEXT[name] if reason in COMPLETE else ''}" for name in names]
    extra = 'tb/ is not written: TensorBoard is not installed (pip install "asyncrl[tensorboard]")'
    missing = [] if importlib.util.find_spec("tensorboard") else [f"{'':<13} {extra}"]
    return [
        f"files         {run_dir}",
        *missing,
        *(f"{'next' * (not i):<13} {c}" for i, c in enumerate(commands)),
    ]


def _target_line(summary: dict[str, Any]) -> list[str]:
    """Time, steps and updates when the weights that reached the target were copied; their evaluation ends later."""
    if summary.get("steps_to_target") is None:
        return []
    return [
        f"target        reached after {summary['time_to_target_seconds']:.2f} s, {summary['steps_to_target']:,} steps, "
        f"{summary['updates_to_target']:,} updates"
    ]


def keep_elsewhere(result: TrainResult, name: str = "") -> str:
    """Write the policy to the working directory, or else to the temporary directory; return lines that say where.

    `name` is that of the file without its suffix, by default the run directory's. Returns "" for a run whose checkpoint
    was written, or that has no run directory.
    """
    if not result.unsaved or result.run_dir is None:
        return ""
    for place in _PLACES:
        try:
            path = result.policy.save(_free_name(Path(place()).absolute(), name or result.run_dir.name))
        except Exception as error:  # whatever the reason is, the next place may do
            failure = error_text(error)
        else:
            return (
                f"policy        {path} (the last checkpoint could not be written: {result.unsaved})\n"
                f"next          asyncrl eval {shlex.quote(str(path))}"
            )
    return (
        f"policy        lost: neither checkpoint ({result.unsaved}) nor policy ({failure}) could be written"
    )


def _free_name(folder: Path, run: str) -> Path:
    """A path for the policy of a run at which there is no file; after `_MOST_NAMES` the last is replaced."""
    names = (f"{run}{f'-{number}' if number else ''}.policy" for number in range(_MOST_NAMES))
    paths = [folder / name for name in names]
    return next((path for path in paths if not path.exists()), paths[-1])
