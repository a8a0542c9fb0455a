"""The policy of a run whose last checkpoint could not be written: kept in a file elsewhere."""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Callable
from pathlib import Path

from asyncrl.printable import error_text
from asyncrl.trainer.run_thread import TrainResult

_PLACES: tuple[Callable[[], str | Path], ...] = (Path.cwd, tempfile.gettempdir)
_MOST_NAMES = 100


def keep_elsewhere(result: TrainResult) -> str:
    """Write the policy to the working directory, or else to the temporary directory; return lines that say where.

    Returns "" for a run whose checkpoint was written, or that has no run directory.
    """
    if not result.unsaved or result.run_dir is None:
        return ""
    for place in _PLACES:
        try:
            path = result.policy.save(_free_name(Path(place()).absolute(), result.run_dir.name))
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
