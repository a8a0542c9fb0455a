"""The run of `asyncrl train`, after its arguments are parsed. Imports torch."""

from __future__ import annotations

import sys
from typing import Any

from asyncrl.actors.forkserver import ForkServer
from asyncrl.cli.interrupts import EXIT_CODE, Interrupts
from asyncrl.cli.plain_warnings import show_warnings_plainly
from asyncrl.learning.clock import PROGRAM_START
from asyncrl.protocols import Algorithm
from asyncrl.run.config import TrainerConfig
from asyncrl.run.run_thread import TrainResult
from asyncrl.run.trainer import Trainer
from asyncrl.show.console import RunConsole, discard
from asyncrl.show.metrics import Snapshot


def train(
    config: TrainerConfig, algorithm: Algorithm, server: ForkServer | None, interrupts: Interrupts
) -> int:
    """Train, show progress and print the result; returns the exit code. Raises the error that ended the run."""
    show_warnings_plainly()
    with Trainer.from_config(config, algorithm, server=server, started=PROGRAM_START) as trainer:
        interrupts.run = trainer
        console = RunConsole()
        if console.live:
            interrupts.notify = console.notify

        def show(snapshot: Snapshot) -> None:
            console.url = trainer.page_url
            console.show(snapshot)

        try:
            result = trainer.learn(on_snapshot=show)
        except Exception:
            if trainer.result is not None:  # the run failed after it had learned
                console.close()
                _print(describe_result(trainer.result))
            raise
        finally:
            console.close()
    _print(describe_result(result))
    return EXIT_CODE if interrupts.count else 0


def _print(text: str) -> None:
    """Print; a closed terminal or pipe does not change the exit code."""
    try:
        print(text, flush=True)
    except OSError:
        discard(sys.stdout)


def describe_result(result: TrainResult) -> str:
    """Closing lines of a run: stop reason, return, cost, files."""
    summary, evaluation = result.summary, result.evaluation
    reached = "not evaluated"
    if evaluation is not None:
        mean, deviation = evaluation.return_mean, evaluation.return_std
        reached = f"{mean:.1f} +/- {deviation:.1f} over {evaluation.episodes} greedy episodes"
    lines = [
        f"stopped by   {result.stop_reason}",
        f"return       {reached}",
        f"training     {summary['train_seconds']:.2f} s, {summary['env_steps']:,} steps, "
        f"{summary['updates']:,} updates",
        *_target_line(summary),
        f"start-up     {summary['startup_seconds']:.2f} s",
        f"files        {result.run_dir if result.run_dir is not None else 'none (--run-dir DIR keeps them)'}",
    ]
    return "\n".join(lines)


def _target_line(summary: dict[str, Any]) -> list[str]:
    """When the weights that reached the target were copied; their evaluation ends later."""
    if summary.get("steps_to_target") is None:
        return []
    return [
        f"target       reached after {summary['time_to_target_seconds']:.2f} s, {summary['steps_to_target']:,} steps, "
        f"{summary['updates_to_target']:,} updates"
    ]
