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
    """`runs/<env>-<algo>-s<seed>-<yyyymmdd-hhmmss>`, for `claim`, which creates it.

    Args:
        env: the environment's id; characters unsuitable for a file name become a hyphen.
        algo: the algorithm's name.
        seed: the run's seed.
        now: local time, None for the current time.
    """
    stamp = time.strftime("%Y%m%d-%H%M%S", now or time.localtime())
    name = re.sub(r"[^A-Za-z0-9._]+", "-", env).strip("-.") or "env"
    return runs_folder() / f"{name}-{algo}-s{seed}-{stamp}"


def claim(run_dir: Path) -> Path:
    """Create a directory named by `new_run_dir`, with `-2`, `-3`, ... if it exists, and return it.

    Commands that start in the same second have the same name. Other directories are returned as they are.
    """
    path, count = run_dir, 1
    while _is_named(run_dir):
        try:
            path.mkdir(parents=True)
            break
        except FileExistsError:
            count += 1
            path = run_dir.with_name(f"{run_dir.name}-{count}")
        except OSError:
            break  # the run says why it cannot write there
    return path


def _is_named(run_dir: Path) -> bool:
    """Whether a directory has a name of `new_run_dir` or `claim`."""
    return run_dir.parent == runs_folder() and bool(re.search(r"-s\d+-\d{8}-\d{6}(-\d+)?$", run_dir.name))


def remove_if_never_trained(run_dir: Path) -> None:
    """Remove a directory named by `new_run_dir` whose run ended before its first step, and `runs` if it is empty then.

    Otherwise a misspelt environment, and Ctrl-C at the start, leave one at every attempt. The message is sufficient.
    """
    if not _is_named(run_dir):
        return
    with contextlib.suppress(OSError, ValueError, KeyError):
        summary = json.loads((run_dir / "summary.json").read_text(encoding="utf-8"))
        if summary["env_steps"] == 0 and not any((run_dir / "checkpoints").iterdir()):
            shutil.rmtree(run_dir)
    remove_if_empty(run_dir)


def remove_if_empty(run_dir: Path) -> None:
    """Remove a directory that `claim` created and no run has written to, and `runs` if it is empty then."""
    if not _is_named(run_dir):
        return
    with contextlib.suppress(OSError):  # it is not empty
        if run_dir.exists():
            run_dir.rmdir()
        if not os.environ.get("ASYNCRL_RUNS"):
            run_dir.parent.rmdir()
