"""Runs the snippets of a documentation page in this process, as a reader would type them."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

from asyncrl.cli.main import main

ROOT = Path(__file__).parents[1]


def snippets(page: str) -> list[tuple[str, str]]:
    """Language (`sh` or `python`) and text of the page's snippets, in order."""
    return re.findall(r"^```(sh|python)\n(.*?)^```", (ROOT / page).read_text(), flags=re.M | re.S)


class PageReader:
    """One Python session and one shell in the working directory. A snippet that fails raises."""

    def __init__(self) -> None:
        self._names: dict[str, Any] = {"__name__": "__main__"}

    def python(self, block: str) -> None:
        """Run Python with the names of the blocks before it."""
        exec(compile(block, "page", "exec"), self._names)

    def shell(self, line: str) -> None:
        """Run an `asyncrl` command by the function of its entry point."""
        program, *arguments = shlex.split(line)
        assert program == "asyncrl", line
        try:
            code = main(arguments)
        except SystemExit as exit:
            code = exit.code
        assert not code, f"{line} ended with {code}"
