"""`asyncrl clean`: remove leftover files of killed runs, never results; on request also runs that never trained."""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Iterator
from pathlib import Path

from asyncrl.cli.flags import Parser
from asyncrl.cli.run_name import existing_folder
from asyncrl.show.kept_run import KeptRun, find_runs

LEFT_OVER = ("http.json", ".http.json.*", ".*.tmp", "checkpoints/.*")
"""Files that have a meaning only during a run."""


def make_parser() -> Parser:
    """Flags of `asyncrl clean`."""
    parser = Parser(
        "clean [FOLDER] [--empty] [--dry-run]",
        "Remove what killed runs have left: addresses of pages that are gone and half-written files. "
        "Results stay.",
    )
    parser.add_argument("FOLDER", nargs="?", help="folder of runs (runs, or ASYNCRL_RUNS)")
    parser.add_argument(
        "--empty", action="store_true", help="also the directories of runs that never trained"
    )
    parser.add_argument("--dry-run", action="store_true", help="only say what would be removed")
    return parser


def run(options: argparse.Namespace) -> None:
    """Remove leftover files and print their names."""
    folder = existing_folder(options.FOLDER, "clean")
    ended = [run for run in find_runs(folder) if run.pid is None]
    empty = [run.path for run in ended if options.empty and is_empty(run)]
    files = [file for run in ended if run.path not in empty for file in left_over(run)]
    for path in (*files, *empty):
        print(f"{'would remove' if options.dry_run else 'removed'} {path}")
        if not options.dry_run:
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    if not files and not empty:
        print(f"nothing is left over in {folder}")


def left_over(run: KeptRun) -> Iterator[Path]:
    """Files of an ended run that had a meaning only while it ran."""
    for pattern in LEFT_OVER:
        yield from (file for file in sorted(run.path.glob(pattern)) if file.is_file())


def is_empty(run: KeptRun) -> bool:
    """Whether an ended run has neither trained a step nor written a checkpoint."""
    checkpoints = run.path / "checkpoints"
    saved = checkpoints.is_dir() and any(not file.name.startswith(".") for file in checkpoints.iterdir())
    return run.env_steps == 0 and not saved and run.best is None
