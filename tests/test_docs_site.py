"""The documentation's site: every page is in its menu, every link in it leads to a place that exists, and it builds."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import asyncrl

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
OF_THE_ROOT = {
    "changelog.md": "CHANGELOG.md",
    "contributing.md": "CONTRIBUTING.md",
    "conduct.md": "CODE_OF_CONDUCT.md",
}
"""Pages that `scripts/site_hooks.py` makes of files of the root, beside tutorials and examples."""
PAGES = sorted([*DOCS.rglob("*.md"), ROOT / "README.md", *(ROOT / name for name in OF_THE_ROOT.values())])
FOREIGN = re.compile(r"""<(?:script|link|img|iframe|source)\b[^>]*?(?:src|href)=["']?(?:https?:)?//[^>]*>""")


def menu() -> list[str]:
    """Pages of the menu of mkdocs.yml, in order."""
    _, _, nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")
    return re.findall(r"(\S+\.md)$", nav, flags=re.M)


def anchors(page: Path) -> set[str]:
    """Anchors of a page's headings."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    titles = re.findall(r"^#+ (.+)$", text, flags=re.M)
    return {re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", title).strip().lower()) for title in titles}


def links(page: Path) -> Iterator[tuple[str, str]]:
    """Target and anchor of every link to a file of the repository."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    for target, anchor in re.findall(r"\]\(([^)#\s]*)#?([^)\s]*)\)", text):
        if not re.match(r"\w+:", target):
            yield target, anchor


def test_the_menu_has_every_page_once() -> None:
    tutorials = {f"tutorials/{path.stem}.md" for path in (ROOT / "notebooks").glob("*.ipynb")}
    made = {*tutorials, "examples.md", *OF_THE_ROOT}
    written = {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")}
    differ = sorted(set(menu()) ^ (written | made))
    assert not differ, "nav in mkdocs.yml has every page, and no other"
    assert len(menu()) == len(set(menu()))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_a_place(page: Path) -> None:
    for target, anchor in links(page):
        there = (page.parent / target).resolve() if target else page
        assert there.exists(), f"{page.name} links {target}"
        if anchor and there.suffix == ".md":
            assert anchor in anchors(there), f"{page.name} links {target}#{anchor}"


def test_twenty_questions_are_answered() -> None:
    """The front page leads to the questions, and each of these to its answer: two clicks."""
    rows = re.findall(r"^\| (.+\?.*?) \| (.+) \|$", (DOCS / "questions.md").read_text(), flags=re.M)
    assert len(rows) >= 20
    for question, answer in rows:
        assert re.search(r"\]\([^)]+\)", answer), question
    assert "questions.md" in {target for target, _ in links(DOCS / "index.md")}


def test_every_public_name_is_in_the_reference() -> None:
    text = "".join(path.read_text() for path in (DOCS / "api").glob("*.md"))
    shown = set(re.findall(r"\basyncrl\.(\w+)", text))
    assert set(asyncrl.__all__) - {"__version__"} <= shown


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site, once for all tests of a worker."""
    for package in ("material", "mkdocstrings", "latex2mathml"):
        pytest.importorskip(package, reason='needs pip install "asyncrl[docs]"')
    folder = tmp_path_factory.mktemp("site")
    line = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.mark.slow
def test_the_site_builds_without_a_warning(site: Path) -> None:
    for page in menu():
        place = re.sub(r"(^|/)(index|README)$", r"\1", page.removesuffix(".md"))
        assert (site / place / "index.html").exists(), page
    assert "<math " in (site / "algorithms" / "sac" / "index.html").read_text(encoding="utf-8")
    assert 'id="asyncrl.Trainer.learn"' in (site / "api" / "trainer" / "index.html").read_text(
        encoding="utf-8"
    )


@pytest.mark.slow
def test_no_page_loads_anything_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        found = [
            tag for tag in FOREIGN.findall(page.read_text(encoding="utf-8")) if 'rel="canonical"' not in tag
        ]
        assert not found, f"{page.relative_to(site)}: {found}"
    assert FOREIGN.search('<script src="https://unpkg.com/mermaid"></script>')
