"""Environments of Python for peers, into which a script installs what it has pinned.

A peer that cannot be installed is reported as absent, with pip's reason.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import tempfile
import venv
from collections.abc import Sequence
from pathlib import Path

INSTALL_SECONDS = 1_200


def python_of(folder: Path) -> str:
    """Interpreter of the environment `folder`, which is made if it is missing and sees this interpreter's packages."""
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    here = folder / "lib" / version / "site-packages" / "of_asyncrl.pth"
    here.write_text(sysconfig.get_path("purelib") + "\n")
    return str(python)


def install(python: str, packages: Sequence[str], pins: Sequence[str] = ()) -> str:
    """Install packages; returns the reason if that fails, "" else. `pins` hold for what they depend on."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write("\n".join(pins) + "\n")
        file.flush()
        pip = [python, "-m", "pip", "install", "-q", "--no-input", "--prefer-binary", "-c", file.name]
        try:
            done = subprocess.run([*pip, *packages], capture_output=True, text=True, timeout=INSTALL_SECONDS)
        except subprocess.TimeoutExpired:
            return f"not installed after {INSTALL_SECONDS} s"
    errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
    return "" if done.returncode == 0 else (errors or ["pip failed"])[0].removeprefix("ERROR: ")
