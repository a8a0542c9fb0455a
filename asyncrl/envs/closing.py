"""Closing an environment, which may fail: nothing that it was made for is lost by it."""

from __future__ import annotations

import sys
import traceback
from typing import Any

from asyncrl.errors import TRACEBACK_LIMIT, printable


def close_env(env: Any) -> None:
    """Close an environment; what it raises is written to standard error (of an actor, its log) and forgotten."""
    try:
        env.close()
    except Exception:
        text = f"The environment was not closed in order, which nothing depends on:\n{traceback.format_exc()}"
        print(printable(text, TRACEBACK_LIMIT), file=sys.stderr)
