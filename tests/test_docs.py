"""Names in the documents exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import asyncrl

ROOT = Path(__file__).parents[1]
NAMED = re.compile(r"`([A-Za-z_.]+)` \(`([a-z_]+/[a-z_]+\.py)`\)")
DOCUMENT = ROOT / "docs" / "architecture.md"


@pytest.mark.parametrize(("name", "file"), NAMED.findall(DOCUMENT.read_text()))
def test_what_the_architecture_names_stands_where_it_says(name: str, file: str) -> None:
    text = (Path(asyncrl.__file__).parent / file).read_text()
    for part in name.split("."):
        assert re.search(rf"\b(class|def) {part}\b", text), f"{file} has no {part}"


def test_every_room_is_in_the_architecture() -> None:
    rooms = {path.name for path in Path(asyncrl.__file__).parent.iterdir() if (path / "__init__.py").exists()}
    assert rooms == set(re.findall(r"^\| `([a-z]+)/`", DOCUMENT.read_text(), flags=re.M))
    assert len(NAMED.findall(DOCUMENT.read_text())) > 20
