"""Run directory of a run that is started without `--run-dir`."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import time
from pathlib import Path

from asyncrl.errors import ConfigurationError

_NAMED = re.compile(r"-s\d+-\d{8}-\d{6}(?:-(\d+))?$")
"""End of a name that `new_run_dir` makes, with the number behind it."""


def runs_folder() -> Path:
    """Folder of the runs: `ASYNCRL_RUNS`, or `runs` in the working directory."""
    return Path(os.environ.get("ASYNCRL_RUNS") or "runs").expanduser()


def existing_folder(given: str | None, command: str) -> Path:
    """The folder of runs `given` to `command`, or `runs_folder()`.

    Raises:
        ConfigurationError: it does not exist (ASYNC017).
    """
    folder = Path(given).expanduser() if given else runs_folder()
    if not folder.is_dir():
        raise ConfigurationError(
            f"there is no folder {folder}",
            facts={"working directory": Path.cwd()},
            fix=f"give the folder of the runs: asyncrl {command} FOLDER",
        )
    return folder


def new_run_dir(env: str, algo: str, seed: int, now: time.struct_time | None = None) -> Path:
    """`runs/<env>-<algo>-s<seed>-<yyyymmdd-hhmmss>`, with `-2`, `-3`, ... if that exists.

    Args:
        env: the environment's id; characters unsuitable for a file name become a hyphen.
        algo: the algorithm's name.
        seed: the run's seed.
        now: local time, None for the current time.
    """
    stamp = time.strftime("%Y%m%d-%H%M%S", now or time.localtime())
    name = re.sub(r"[^A-Za-z0-9._]+", "-", env).strip("-.") or "env"
    first = runs_folder() / f"{name}-{algo}-s{seed}-{stamp}"
    path, count = first, 1
    while path.exists():
        count += 1
        path = first.with_name(f"{first.name}-{count}")
    return path


def claim(run_dir: Path) -> Path:
    """Create a directory named by `new_run_dir`, with the next number if another run has taken the name meanwhile.

    Commands that start in the same second have the same name. Other directories are returned as they are.
    """
    named = _NAMED.search(run_dir.name)
    if run_dir.parent != runs_folder() or named is None:
        return run_dir
    stem, count = run_dir.name.removesuffix(f"-{named[1]}"), int(named[1] or 1)
    while True:
        path = run_dir if count == 1 else run_dir.with_name(f"{stem}-{count}")
        try:
            path.mkdir(parents=True)
            return path
        except FileExistsError:
            count += 1
        except OSError:
            return path  # the run says why it cannot write there


def remove_if_never_trained(run_dir: Path) -> None:
    """Remove a directory named by `new_run_dir` whose run failed before its first step, and `runs` if it is empty then.

    Otherwise a misspelt environment would leave one at every attempt. The error message is sufficient.
    """
    if run_dir.parent != runs_folder() or not _NAMED.search(run_dir.name):
        return
    with contextlib.suppress(OSError, ValueError, KeyError):
        summary = json.loads((run_dir / "summary.json").read_text(encoding="utf-8"))
        if summary["env_steps"] == 0 and not any((run_dir / "checkpoints").iterdir()):
            shutil.rmtree(run_dir)
    remove_if_empty(run_dir)


def remove_if_empty(run_dir: Path) -> None:
    """Remove a directory that `claim` created and no run has written to, and `runs` if it is empty then."""
    if run_dir.parent != runs_folder() or not _NAMED.search(run_dir.name):
        return
    with contextlib.suppress(OSError):  # it is not empty
        if run_dir.exists():
            run_dir.rmdir()
        if not os.environ.get("ASYNCRL_RUNS"):
            run_dir.parent.rmdir()
