"""Files of the project beside its code: they agree on the version, the owner and what exists."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path

import pytest
from waiting import PATIENCE_SECONDS

import asyncrl

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
HOOKS = ROOT / "scripts" / "site_hooks.py"


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_the_version_is_one() -> None:
    cited = re.search(r"^version: (\S+)$", read("CITATION.cff"), flags=re.M)
    changed = re.search(r"^## (\S+)", read("CHANGELOG.md"), flags=re.M)
    assert cited and changed
    assert {cited[1], changed[1]} == {asyncrl.__version__}


def test_the_owner_is_named_in_one_file() -> None:
    assert set(PROJECT["urls"]) == {"Homepage", "Documentation", "Source", "Issues", "Changelog"}
    (owner,) = set(re.findall(r"github\.com/([\w-]+)/asyncrl", read("pyproject.toml")))
    files = [*ROOT.glob("*.*"), *(ROOT / ".github").rglob("*.*"), *(ROOT / "docs").rglob("*.md"), HOOKS]
    named = {
        path.name
        for path in files
        if path.is_file()
        and re.search(rf"\b{owner}(/asyncrl|\.github\.io)", path.read_text(errors="replace"))
    }
    assert named == {"pyproject.toml"}


@pytest.mark.parametrize("name", [".github/workflows/build.yml", ".pre-commit-config.yaml", "Dockerfile"])
def test_what_automation_names_exists(name: str) -> None:
    text = read(name)
    for path in re.findall(r"(?<![\w/.])((?:scripts|\.ci)/[\w-]+|constraints-[\w-]+\.txt)", text):
        assert (ROOT / path).exists(), f"{name} names {path}"
    for extras in re.findall(r"'\.\[([\w,]+)\]'", text):
        assert set(extras.split(",")) <= set(PROJECT["optional-dependencies"])
    assert "optional-dependencies']['docs']" in text or "docs.txt" not in text


def test_the_container_is_given_what_it_copies() -> None:
    copied = {
        source
        for line in re.findall(r"^COPY (.+) \S+$", read("Dockerfile"), flags=re.M)
        for source in line.split()
    }
    assert copied == set(re.findall(r"^!(\S+)$", read(".dockerignore"), flags=re.M))
    assert all((ROOT / source).exists() for source in copied)


@pytest.mark.slow
def test_the_source_archive_makes_the_same_wheel(tmp_path: Path) -> None:
    def build(target: str, folder: Path) -> Path:
        line = [sys.executable, "-m", "hatchling", "build", "--target", target, "--directory", str(tmp_path)]
        done = subprocess.run(line, cwd=folder, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
        assert done.returncode == 0, done.stdout + done.stderr
        return next(tmp_path.glob("*.tar.gz" if target == "sdist" else "*.whl"))

    with tarfile.open(build("sdist", ROOT)) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
        assert {"tests/conftest.py", "docs/index.md", "mkdocs.yml", "scripts/setup", "CITATION.cff"} <= names
        archive.extractall(tmp_path, filter="data")
    folder = next(path for path in tmp_path.iterdir() if path.is_dir())
    assert build("wheel", folder).stat().st_size > 100_000
