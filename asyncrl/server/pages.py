"""HTML pages: each is one file without external resources, with a security policy that allows only its own code."""

from __future__ import annotations

import base64
import hashlib
import re
from functools import lru_cache
from importlib.resources import files

from aiohttp import web

RUN_PAGE, FOLDER_PAGE = "page.html", "folder.html"

_SHARED = re.compile(r"/\* ==== shared.*?==== end of what is shared ==== \*/", re.DOTALL)
_COMMENT, _INDENT = re.compile(r"/\*.*?\*/\n?", re.DOTALL), re.compile(r"^[ \t]+", re.MULTILINE)
_STYLE, _SCRIPT = (re.compile(f"<{tag}>(.*?)</{tag}>", re.DOTALL) for tag in ("style", "script"))


def page_response(name: str) -> web.Response:
    """Response with the page."""
    body, policy = load_page(name)
    headers = {"Content-Security-Policy": policy, "X-Frame-Options": "DENY"}
    return web.Response(body=body, content_type="text/html", charset="utf-8", headers=headers)


@lru_cache(maxsize=2)
def load_page(name: str = RUN_PAGE) -> tuple[bytes, str]:
    """Load a page and a Content-Security-Policy that allows only its style and script, by their hashes.

    The folder's page includes the style and the shared part of the script of a run's page. Comments and indents are not
    sent.
    """
    text = _read(name)
    if name == FOLDER_PAGE:
        run = _read(RUN_PAGE)
        text = text.replace("/* the style of a run's page */", _part(_STYLE, run).group(1))
        text = text.replace("/* what a run's page shares */", _part(_SHARED, run).group(0))
    text = _INDENT.sub("", _COMMENT.sub("", text))
    style, script = (_hash(_part(pattern, text).group(1)) for pattern in (_STYLE, _SCRIPT))
    policy = (
        f"default-src 'none'; style-src '{style}'; script-src '{script}'; connect-src 'self'; img-src data:; "
        "media-src blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return text.encode(), policy


def _read(name: str) -> str:
    return files("asyncrl.server").joinpath(name).read_text(encoding="utf-8")


def _part(pattern: re.Pattern[str], text: str) -> re.Match[str]:
    found = pattern.search(text)
    assert found is not None, f"the page lacks {pattern.pattern}"
    return found


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
