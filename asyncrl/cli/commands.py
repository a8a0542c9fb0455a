"""The commands `train` and `eval`, after their arguments are parsed. Imports torch."""

from __future__ import annotations

import asyncio
import contextlib
import json
import pickle
import sys
import warnings
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from numpy.typing import NDArray

from asyncrl.actors.evaluator import RemoteEvaluator
from asyncrl.actors.forkserver import ForkServer
from asyncrl.cli.arguments import EvalOptions, algorithm_of
from asyncrl.cli.interrupts import EXIT_CODE, Interrupts
from asyncrl.envs.source import EnvSource
from asyncrl.errors import AsyncRLError, AsyncRLWarning, error_text
from asyncrl.learning.clock import PROGRAM_START
from asyncrl.protocols import Algorithm
from asyncrl.run.checkpoint import SavedPolicy, does_not_fit, read_policy
from asyncrl.run.config import TrainerConfig
from asyncrl.run.run_thread import TrainResult
from asyncrl.run.trainer import Trainer
from asyncrl.show.console import RunConsole, discard
from asyncrl.show.metrics import Snapshot


def train(
    config: TrainerConfig, algorithm: Algorithm, server: ForkServer | None, interrupts: Interrupts
) -> int:
    """Train, show progress and print the result; returns the exit code. Raises the error that ended the run."""
    _show_warnings_plainly()
    with Trainer.from_config(config, algorithm, server=server, started=PROGRAM_START) as trainer:
        interrupts.run = trainer
        console = RunConsole()

        def show(snapshot: Snapshot) -> None:
            console.url = trainer.url
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


def _show_warnings_plainly() -> None:
    """Print warnings of this package as one line on standard error, without the line of code."""
    before = warnings.showwarning

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        if issubclass(category, AsyncRLWarning):
            with contextlib.suppress(OSError, ValueError):  # a closed terminal
                print(f"warning: {message}", file=file or sys.stderr, flush=True)
        else:
            before(message, category, filename, lineno, file, line)

    warnings.showwarning = show


def evaluate(options: EvalOptions, server: ForkServer | None) -> int:
    """Play greedy episodes with a checkpoint's weights and print the returns; returns the exit code."""
    _show_warnings_plainly()
    saved = read_policy(options.path)
    returns, lengths = asyncio.run(_play(saved, options, server or ForkServer()))
    record = _evaluation_record(options, saved, returns, lengths)
    if options.json:
        print(json.dumps(record, allow_nan=False), flush=True)
    else:
        print(
            f"return       {record['return_mean']:.1f} +/- {record['return_std']:.1f} "
            f"over {options.episodes} greedy episodes, "
            f"from {record['return_min']:.1f} to {record['return_max']:.1f}\n"
            f"length       {record['length_mean']:.1f} steps\n"
            f"policy       {saved.meta.algo} on {saved.meta.env} after {saved.meta.env_steps:,} steps\n"
            f"file         {options.path}",
            flush=True,
        )
    return 0


async def _play(
    saved: SavedPolicy, options: EvalOptions, server: ForkServer
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    meta = saved.meta
    policy = _policy_bytes(saved, options.path)
    source = EnvSource.from_user(meta.env)
    evaluator = RemoteEvaluator(server, source, meta.spec, policy, seed=options.seed)
    try:
        return await evaluator.evaluate(saved.weights, options.episodes)
    finally:
        await evaluator.close()


def _policy_bytes(saved: SavedPolicy, path: Path) -> bytes:
    """The pickled policy of a checkpoint. Raises `CheckpointError` where options and weights do not fit."""
    meta = saved.meta
    try:
        algorithm = algorithm_of(meta.algo, dict(meta.options), path)
        policy = algorithm.make_policy(meta.spec)
    except AsyncRLError as error:
        raise does_not_fit(path, error.what) from None
    except (ArithmeticError, AttributeError, LookupError, MemoryError, TypeError, ValueError) as error:
        raise does_not_fit(path, error_text(error) or type(error).__name__) from None
    if policy.weight_count != saved.weights.shape[0]:
        what = f"its options make a policy of {policy.weight_count:,} weights, it holds {saved.weights.shape[0]:,}"
        raise does_not_fit(path, what)
    return pickle.dumps(policy)


def _evaluation_record(
    options: EvalOptions, saved: SavedPolicy, returns: NDArray[np.float64], lengths: NDArray[np.int64]
) -> dict[str, Any]:
    return {
        "checkpoint": str(options.path),
        "env": saved.meta.env,
        "algo": saved.meta.algo,
        "env_steps": saved.meta.env_steps,
        "policy_version": saved.meta.policy_version,
        "seed": options.seed,
        "episodes": int(returns.shape[0]),
        "return_mean": float(returns.mean()),
        "return_std": float(returns.std()),
        "return_min": float(returns.min()),
        "return_max": float(returns.max()),
        "length_mean": float(lengths.mean()),
    }
