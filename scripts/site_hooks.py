"""Hooks of MkDocs: pages from files outside of docs/, links to them, equations as MathML.

Tutorials are the notebooks, the examples are one page, and changelog and contributing guide are files of the root. A
link in a page is relative to the page's own file, as on a code host; here it becomes a link of the site. Equations are
`$...$` and blocks of `math`, as on a code host too; MathML needs no script.
"""

from __future__ import annotations

import ast
import html
import json
import posixpath
import re
import tomllib
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
PLACEHOLDER = "OWNER"
"""Stands in pyproject.toml for the account that holds the repository, until there is one."""
OF_THE_ROOT = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "CODE_OF_CONDUCT.md": "conduct.md",
}
"""Files of the root that are pages, and their place in the site."""
RANKS = {
    "algorithms/README": 1.0,
    **dict.fromkeys(("algorithms/", "api/", "architecture", "examples", "tutorials/"), 0.4),
    **dict.fromkeys(("changelog", "contributing", "results"), 0.2),
}
"""Factors on the rank of a search's results by the beginning of a page's path: guides before tables and lists."""
LINK = re.compile(r"(\[[^\]]*\])\((?!\w+:|#)([^)#\s]+)(#[^)\s]*)?\)")
MATH = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', flags=re.S)


def site_paths() -> dict[str, str]:
    """Place in the site of every file of the repository that is a page, by its path from the root."""
    pages = {path: path.relative_to("docs") for path in _under("docs", "**/*.*")}
    paths = {str(path): str(place) for path, place in pages.items()}
    paths |= {str(path): f"tutorials/{path.stem}.md" for path in _under("notebooks", "*.ipynb")}
    paths |= {str(path): f"examples.md#{anchor(path)}" for path in _under("examples", "*.py")}
    return paths | OF_THE_ROOT | {"examples": "examples.md", "notebooks": "tutorials/01_quickstart.md"}


def _under(folder: str, pattern: str) -> list[Path]:
    return sorted(path.relative_to(ROOT) for path in (ROOT / folder).glob(pattern) if path.is_file())


def anchor(example: Path) -> str:
    """Anchor of an example on its page."""
    return f"{example.stem}py"


def tutorial(notebook: Path) -> str:
    """Page of a notebook: its text and its code, without outputs."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    parts = [
        text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```"
        for cell in cells
        if (text := "".join(cell["source"]).strip())
    ]
    return "\n\n".join([*parts, f"This page is the notebook [{notebook.name}]({notebook.name}).\n"])


def examples() -> str:
    """Page of all examples: what each shows, and its program."""
    text = (
        "# Examples\n\nEvery program runs as it is, and is run by the tests. Fewer `STEPS` end it sooner.\n"
    )
    for path in _under("examples", "*.py"):
        code = (ROOT / path).read_text(encoding="utf-8")
        about = (ast.get_docstring(ast.parse(code)) or "").partition("\n")[0]
        text += f"\n## {path.name}\n\n{about}\n\n```python\n{code.strip()}\n```\n"
    return text


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Link the repository, if it has an owner. The theme's own `repo_url` would ask another server for its stars."""
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]
    if PLACEHOLDER not in urls["Source"]:
        config.extra["social"] = [
            {"icon": "fontawesome/brands/git-alt", "link": urls["Source"], "name": "Source"}
        ]
        config.site_url = config.site_url or urls["Documentation"]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made of files outside of docs/."""
    made = {OF_THE_ROOT[name]: (ROOT / name).read_text(encoding="utf-8") for name in OF_THE_ROOT}
    made["examples.md"] = examples()
    for path in _under("notebooks", "*.ipynb"):
        made[f"tutorials/{path.stem}.md"] = tutorial(ROOT / path)
        made[f"tutorials/{path.name}"] = (ROOT / path).read_text(encoding="utf-8")
    for place, content in made.items():
        files.append(File.generated(config, place, content=content))
    return files


def on_page_markdown(markdown: str, *, page: Page, **_: Any) -> str:
    """Turn links to files of the repository into links of the site, and rank the page in searches."""
    place = page.file.src_uri
    page.meta["search"] = {"boost": next((low for part, low in RANKS.items() if place.startswith(part)), 1.0)}
    if place == "examples.md" or place.startswith("tutorials/"):
        return markdown
    paths = site_paths()
    source = next((path for path, of_page in paths.items() if of_page == place), place)

    def of_the_site(match: re.Match[str]) -> str:
        text, link, end = match[1], match[2], match[3] or ""
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), link))
        if target not in paths:
            return text[1:-1] if (ROOT / target).exists() else match[0]
        there, _, part = paths[target].partition("#")
        return f"{text}({posixpath.relpath(there, posixpath.dirname(place))}{end or (part and f'#{part}')})"

    return LINK.sub(of_the_site, markdown)


def on_page_content(content: str, **_: Any) -> str:
    """Turn equations into MathML."""
    return MATH.sub(lambda match: mathml(html.unescape(match[3]), block=match[2] == "["), content)


def mathml(tex: str, *, block: bool) -> str:
    """Equation as MathML. latex2mathml has no `aligned`, but arrays."""
    tex = tex.replace(r"\begin{aligned}", r"\begin{array}{rl}").replace(r"\end{aligned}", r"\end{array}")
    made = convert(tex.strip(), display="block" if block else "inline")
    made = made.replace("<mi>&#x0007E;</mi>", "<mo>&#x0223C;</mo>")  # `\sim`, which it writes as a tilde
    made = made.replace("<mi>log</mi>", '<mi>log</mi><mspace width="0.167em" />')
    made = re.sub(r'<mo>(\w{2,})</mo>(?=<mo stretchy="false">&#x00028;)', r'<mo rspace="0">\1</mo>', made)
    unknown = re.search(r"<mi>(\\\w+|&)</mi>", made)
    if unknown:
        raise ValueError(f"latex2mathml does not know {unknown[1]} in {tex!r}")
    return made if not block else f'<div class="equation">{made}</div>'
