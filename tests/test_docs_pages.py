"""Pages of docs/: complete and up to date."""

from __future__ import annotations

import inspect
import re
import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

import pytest

from asyncrl import errors
from asyncrl.algorithms import ALGORITHMS
from asyncrl.algorithms.other_names import other_names
from asyncrl.config import TrainerConfig
from asyncrl.options import option_help

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"

OWN = [name for name, record in ALGORITHMS.items() if record.__module__.startswith("asyncrl.")]


def script() -> ModuleType:
    loader = SourceFileLoader("write_docs", str(ROOT / "scripts" / "write-docs"))
    spec = spec_from_loader("write_docs", loader)
    assert spec is not None
    module = module_from_spec(spec)
    sys.modules["write_docs"] = module
    loader.exec_module(module)
    return module


def test_generated_pages_are_up_to_date() -> None:
    stale = [str(path.relative_to(ROOT)) for path, text in script().pages() if path.read_text() != text]
    assert not stale, f"run scripts/write-docs: {stale}"


def test_every_algorithm_has_a_page_and_is_in_the_list() -> None:
    listed = re.findall(r"\]\((\w+)\.md\)", (DOCS / "algorithms" / "README.md").read_text())
    assert set(listed) >= set(ALGORITHMS)


@pytest.mark.parametrize("name", sorted(OWN))
def test_the_page_of_an_algorithm_has_its_equations(name: str) -> None:
    own = (DOCS / "algorithms" / f"{name}.md").read_text().partition(script().MARK)[0]
    equations = re.search(r"^## Equations\n(.*?)(?=^## |\Z)", own, flags=re.M | re.S)
    assert equations, f"{name}.md has no section Equations above the generated part"
    lines = "".join(re.findall(r"^```math\n(.*?)^```$", equations[1], flags=re.M | re.S)).splitlines()
    assert len([line for line in lines if "&=" in line]) >= 3


def test_every_code_has_a_section() -> None:
    codes = {
        cls.code
        for cls in vars(errors).values()
        if inspect.isclass(cls) and issubclass(cls, errors.AsyncRLError)
    }
    codes |= set(re.findall(r'"""(ASYNC\d+):', inspect.getsource(errors)))
    sections = re.findall(r"^### (ASYNC\d+)$", (DOCS / "troubleshooting.md").read_text(), flags=re.M)
    assert sorted(codes) == sorted(sections)


def test_options_for_those_who_migrate_exist() -> None:
    known = {name for record in (*ALGORITHMS.values(), TrainerConfig) for name in option_help(record)}
    rows = re.findall(r"^\| (.*?) \| (.*) \|$", (DOCS / "migrating.md").read_text(), flags=re.M)
    ours = {name for _, right in rows for name in re.findall(r"`([a-z_]+)(?:=[^`]*)?`", right)}
    assert len(ours) > 30
    assert ours <= known, f"no such option: {sorted(ours - known)}"
    flags = {flag for _, right in rows for flag in re.findall(r"`--\w+\.([a-z-]+)", right)}
    assert flags
    assert {flag.replace("-", "_") for flag in flags} <= known


def test_options_of_other_libraries_are_answered_where_they_are_written() -> None:
    known = {name for record in (*ALGORITHMS.values(), TrainerConfig) for name in option_help(record)}
    rows = re.findall(r"^\| (.*?) \| .* \|$", (DOCS / "migrating.md").read_text(), flags=re.M)
    plain = {name for left in rows for name in re.findall(r"`(?:--)?([a-z_-]+)(?:=[^`]*)?`", left)}
    theirs = {name.replace("-", "_") for name in plain} - {"make_vec_env", "predict"}  # functions
    assert len(theirs) > 40
    unanswered = theirs - known - other_names().keys()
    assert not unanswered, f"not in other_names.toml: {sorted(unanswered)}"
