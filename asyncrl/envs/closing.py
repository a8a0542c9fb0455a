"""Closing an environment, where a failure is not an error."""

from __future__ import annotations

import sys
import traceback
from typing import Any

from asyncrl.printable import TRACEBACK_LIMIT, printable


def close_env(env: Any) -> None:
    """Close an environment; an exception is written to standard error (an actor's log) and suppressed."""
    try:
        env.close()
    except Exception:
        text = f"The environment was not closed in order, which nothing depends on:\n{traceback.format_exc()}"
        print(printable(text, TRACEBACK_LIMIT), file=sys.stderr)
