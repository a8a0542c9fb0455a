"""Wheel: it holds the whole package and works after installation."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from waiting import PATIENCE_SECONDS

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "asyncrl"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    line = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = folder.glob("*.whl")
    return built


def test_it_holds_every_file_of_the_package(wheel: Path) -> None:
    own = {
        str(path.relative_to(ROOT))
        for path in PACKAGE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    held = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("asyncrl/")}
    assert {"asyncrl/server/page.html", "asyncrl/algorithms/presets/dqn.toml", "asyncrl/py.typed"} <= own
    assert own == held


def test_it_works_where_it_is_installed(wheel: Path, tmp_path: Path) -> None:
    place = tmp_path / "site"
    install = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
        "--target",
        str(place),
    ]
    subprocess.run([*install, str(wheel)], check=True, timeout=PATIENCE_SECONDS, capture_output=True)
    environ = {**os.environ, "PYTHONPATH": str(place), "NO_COLOR": "1"}

    def run(*line: str) -> str:
        done = subprocess.run(
            [sys.executable, *line],
            cwd=tmp_path,
            env=environ,
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert run("-c", "import asyncrl; print(asyncrl.__file__)").strip() == str(
        place / "asyncrl" / "__init__.py"
    )
    assert "475 over 100 episodes" in run("-m", "asyncrl", "presets", "dqn")
    assert run("-m", "asyncrl", "--version").startswith("asyncrl ")
    script = (place / "bin" / "asyncrl").read_text()
    assert "asyncrl.cli.entry" in script
